/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the kernel programs account per task and send through the ring buffer.
 *
 * Mirrors ebpf/abi/src/kernel.rs and files.rs, which have the meaning of every field; the test `layout` compares
 * them field by field. All times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef STALLSCOPE_ABI_H
#define STALLSCOPE_ABI_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed long long s64;

#define ABI_VERSION 9
#define MAX_TASKS 16384
#define MAX_USERS 1024
#define MAX_FILES 16384
#define MAX_MOUNTS 1024
#define NAME_BYTES 64
#define PARENT_BYTES 32

enum blocked {
	BLOCKED_FILE_READ = 0,
	BLOCKED_FILE_WRITE = 1,
	BLOCKED_FAULT = 2,
	BLOCKED_NET = 3,
	BLOCKED_UNIX = 4,
	BLOCKED_SYNC = 5,
	BLOCKED_RENAME = 6,
	BLOCKED_PIPE = 7,
	BLOCKED_FUTEX = 8,
	BLOCKED_FUTEX_NET = 9,
	BLOCKED_FUTEX_READ = 10,
	BLOCKED_POLL = 11,
	BLOCKED_SLEEP = 12,
	BLOCKED_CHILD = 13,
	BLOCKED_OTHER = 14,
	BLOCKED_KINDS = 15,
};

enum state {
	STATE_FREE = 0,
	STATE_RUNNING = 1,
	STATE_RUNNABLE = 2,
	STATE_BLOCKED = 3,
	STATE_EXITED = 4,
};

enum flag {
	FLAG_WATCHED = 1,
	FLAG_LEADER = 2,
	FLAG_AT_ATTACH = 4,
	FLAG_PRIVILEGED = 8,
};

enum kind {
	KIND_SLICE = 1,
	KIND_WAIT = 2,
	KIND_WAKE = 3,
	KIND_BATCH_READ = 4,
	KIND_TASK_NEW = 5,
	KIND_TASK_EXEC = 6,
	KIND_TASK_EXIT = 7,
	KIND_SAVE = 8,
};

enum lost {
	LOST_RING_FULL = 0,
	LOST_NO_SLOT = 1,
	LOST_NO_STORAGE = 2,
	LOST_NO_MOUNT = 3,
	LOST_USER_SLOTS = 4,
	LOST_USER_RING = 5,
	LOST_REASONS = 6,
};

struct times {
	u64 cpu_ns;
	u64 cpu_read_ns;
	u64 runnable_ns;
	u64 blocked_ns[BLOCKED_KINDS];
};

/* The `scratch` of a slot: internals of the kernel side. */
struct scratch {
	/* Last wake-up; its lowest bits are of `enum woken`. */
	u64 wake_ns;
	/* When the task last got a CPU. */
	u64 run_start_ns;
	u64 sent_rchar;
	u64 sent_read_bytes;
	/* Slot of the thread group's leader, plus one; 0 when it is not tracked (or is this task). */
	u32 leader;
	/* Bits of `enum note`. */
	u8 notes;
	/* Bits of `enum reading`; user space clears it after it detached the syscall hooks. */
	u8 reading;
	/* The number of this slot. */
	u16 index;
	/* End of the last system call of the burst of reads under way. */
	u64 read_end_ns;
	/* Until when this thread's CPU time was added to its leader's sibling_cpu_ns. */
	u64 sibling_until_ns;
	/* tgid that user space asked to watch, inherited through fork. */
	u32 root;
	/* fd, plus one, of the message header being read from a pipe. */
	u32 header_fd;
	/* What the scheduler has counted at the task's last switch that was traced: `sched_info.run_delay`, ... */
	u64 run_delay_ns;
	/* ... `se.sum_exec_runtime`, ... */
	u64 exec_ns;
	/* ... and `sched_info.pcount`. */
	u32 arrivals;
	/* See unknown_to_verifier. */
	u32 kind;
	/* For how long this thread was runnable without a CPU in the sleep of its leader's that began at `late_for_ns`. */
	u64 late_ns;
	u64 late_for_ns;
	/* When a read of a file ended whose data this thread may have: its own, or one of a thread that handed on to it. */
	u64 has_read_ns;
};

struct task_slot {
	u32 seq;
	u32 flags;
	u32 tid;
	u32 tgid;
	u32 ppid;
	u32 generation;
	u8 state;
	u8 blocked_in;
	u16 user;
	u32 uid;
	u64 since_ns;
	u64 start_boottime_ns;
	u64 first_seen_ns;
	struct times total;
	u64 sibling_cpu_ns;
	u64 sibling_runnable_ns;
	u64 rchar;
	u64 read_bytes;
	u8 comm[16];
	struct times sent;
	u64 sent_sibling_cpu_ns;
	u64 sent_sibling_runnable_ns;
	u64 slice_start_ns;
	struct scratch scratch;
};

struct header {
	u16 kind;
	u16 size;
	u32 slot;
	u32 tid;
	u32 tgid;
	u64 time_ns;
};

struct slice {
	struct header header;
	u64 start_ns;
	struct times times;
	u64 sibling_cpu_ns;
	u64 sibling_runnable_ns;
	u64 rchar;
	u64 read_bytes;
};

struct wait {
	struct header header;
	u64 start_ns;
	u32 waker_tid;
	u32 waker_tgid;
	u32 blocked_in;
	u32 pad;
	u64 errand_start_ns;
	u64 errand_cpu_ns;
	u64 errand_runnable_ns;
	u64 errand_read_ns;
};

struct wake {
	struct header header;
	u32 woken_tid;
	u32 pad;
	u64 cpu_ns;
};

struct batch_read {
	struct header header;
	u32 fd;
	u32 pad;
};

struct save {
	struct header header;
	u32 what;
	u32 pad;
	u64 bytes;
};

struct task_new {
	struct header header;
	u32 ppid;
	u32 flags;
	u64 start_boottime_ns;
	u8 comm[16];
};

struct task_exit {
	struct header header;
	u32 status;
	u32 pad;
	struct times total;
};

enum user {
	USER_EVERYBODY = 0,
	USER_ROOT = 1,
};

struct user_slots {
	u64 taken;
	u64 returned;
	u64 refused;
	u64 mounts_taken;
	u64 mounts_returned;
	u64 files_taken;
	u64 files_returned;
	u64 sent_since_ns;
	u64 sent_bytes;
	u64 unsent;
};

struct file_key {
	u32 root;
	u32 mount;
	u32 dev;
	u32 uid;
	u64 inode;
};

struct mount_wait {
	u64 wait_ns;
	u64 waits;
};

struct file_wait {
	u64 wait_ns;
	u64 waits;
	u32 tgid;
	u32 whole;
	u8 name[NAME_BYTES];
	u8 parent[PARENT_BYTES];
};

struct kept_file {
	struct file_wait wait;
	u64 last_ns;
};

_Static_assert(sizeof(struct times) == 8 * (3 + BLOCKED_KINDS), "times");
_Static_assert(sizeof(struct scratch) == 112, "scratch");
_Static_assert(sizeof(struct task_slot) == 24 + 8 + 24 + 2 * sizeof(struct times) + 56 + 16 + 112, "task_slot");
_Static_assert(sizeof(struct header) == 24, "header");
_Static_assert(sizeof(struct slice) == 24 + 8 + sizeof(struct times) + 32, "slice");
_Static_assert(sizeof(struct wait) == 80, "wait");
_Static_assert(sizeof(struct wake) == 40, "wake");
_Static_assert(sizeof(struct batch_read) == 32, "batch_read");
_Static_assert(sizeof(struct save) == 40, "save");
_Static_assert(sizeof(struct task_new) == 56, "task_new");
_Static_assert(sizeof(struct task_exit) == 32 + sizeof(struct times), "task_exit");
_Static_assert(sizeof(struct user_slots) == 80, "user_slots");
_Static_assert(sizeof(struct file_key) == 24, "file_key");
_Static_assert(sizeof(struct mount_wait) == 16, "mount_wait");
_Static_assert(sizeof(struct file_wait) == 24 + NAME_BYTES + PARENT_BYTES, "file_wait");
_Static_assert(sizeof(struct kept_file) == sizeof(struct file_wait) + 8, "kept_file");

#endif
