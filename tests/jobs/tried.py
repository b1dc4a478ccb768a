"""Makes system calls in the place of another process and says how each ended: tried.py PID, as root, on x86-64.

What a process may do is the kernel's to say at each of its calls. So its main thread, stopped where it waits in one, is
given registers for another, runs one instruction, and is let go on as it was. Prints a JSON object: the name of the
error of each try, or "done".
"""

import ctypes
import errno
import json
import os
import struct
import sys

GETREGS, SETREGS, SINGLESTEP, ATTACH, DETACH = 12, 13, 9, 16, 17
# Of struct user_regs_struct.
RAX, ORIG_RAX, RIP, RSP, ARGUMENTS = 10, 15, 16, 19, [14, 13, 12, 7, 9, 8]
SYSCALL = b"\x0f\x05"
AT_FDCWD, AF_UNIX, AF_INET, SOCK_STREAM = -100, 1, 2, 1
SHUT_RD, MSG_FASTOPEN = 0, 0x20000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid = int(sys.argv[1])


def ptrace(request, data=None):
    if libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


def tried(saved, memory, number, *arguments):
    registers = list(saved)
    # Far below what the interrupted function has on its stack.
    below = saved[RSP] - 16384
    for place, argument in zip(ARGUMENTS, arguments):
        if isinstance(argument, bytes):
            memory.seek(below)
            memory.write(argument)
            argument, below = below, below + 256
        registers[place] = argument % 2**64
    # -1: no call that the kernel would begin anew.
    registers[RAX], registers[ORIG_RAX], registers[RIP] = number, 2**64 - 1, saved[RIP] - len(SYSCALL)
    ptrace(SETREGS, ctypes.create_string_buffer(struct.pack("=27Q", *registers)))
    ptrace(SINGLESTEP)
    os.waitpid(pid, 0)
    after = ctypes.create_string_buffer(27 * 8)
    ptrace(GETREGS, after)
    (result,) = struct.unpack_from("=q", after, RAX * 8)
    return errno.errorcode[-result] if result < 0 else "done"


ptrace(ATTACH)
os.waitpid(pid, 0)
buffer = ctypes.create_string_buffer(27 * 8)
ptrace(GETREGS, buffer)
saved = struct.unpack("=27Q", buffer.raw)
with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
    memory.seek(saved[RIP] - len(SYSCALL))
    assert memory.read(len(SYSCALL)) == SYSCALL, "it does not wait in a system call"
    attributes = bytes(128)
    # 127.0.0.1, port 9. Whether it may be sent to is asked before whether there is such a descriptor.
    address = struct.pack("=H", AF_INET) + bytes([0, 9, 127, 0, 0, 1]) + bytes(8)
    answers = {
        name: tried(saved, memory, number, *arguments)
        for name, number, arguments in [
            ("reads /proc", 257, (AT_FDCWD, b"/proc/self/status\0", os.O_RDONLY)),
            ("reads /etc", 257, (AT_FDCWD, b"/etc/hostname\0", os.O_RDONLY)),
            ("writes", 257, (AT_FDCWD, b"/dev/null\0", os.O_WRONLY)),
            ("makes a file", 257, (AT_FDCWD, b"/tmp/made\0", os.O_RDONLY | os.O_CREAT, 0o600)),
            ("removes", 263, (AT_FDCWD, b"/dev/null\0", 0)),
            ("executes", 59, (b"/bin/true\0", 0, 0)),
            ("forks", 57, ()),
            ("clones", 56, (0, 0, 0, 0, 0)),
            ("calls by IP", 41, (AF_INET, SOCK_STREAM, 0)),
            ("calls by Unix", 41, (AF_UNIX, SOCK_STREAM, 0)),
            ("sends to an address", 44, (-1, 0, 0, 0, address, 16)),
            ("calls by sending", 44, (-1, 0, 0, MSG_FASTOPEN, 0, 0)),
            ("frees a socket that listens", 48, (-1, SHUT_RD)),
            ("maps code", 9, (0, 4096, 5, 0x22, -1, 0)),
            ("becomes root", 105, (0,)),
            ("traces", 101, (16, 1, 0, 0)),
            ("signals", 62, (1, 0)),
            ("loads a program", 321, (5, attributes, 128)),
            ("makes a map", 321, (0, attributes, 128)),
            ("opens a pinned map", 321, (7, attributes, 128)),
            ("goes through a map", 321, (4, attributes, 128)),
        ]
    }
ptrace(SETREGS, ctypes.create_string_buffer(buffer.raw))
ptrace(DETACH)
print(json.dumps(answers))
