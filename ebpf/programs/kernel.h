/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The little of the kernel that the programs touch: helpers by number, and the fields that they read.
 *
 * The structs hold only what is used, in any order: `preserve_access_index` makes clang emit a CO-RE
 * relocation for every access, and the loader puts in the offset that the running kernel has.
 */
#ifndef STALLSCOPE_KERNEL_H
#define STALLSCOPE_KERNEL_H

#include "abi.h"

typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name

enum map_type {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_ARRAY = 6,
	MAP_QUEUE = 22,
	MAP_RINGBUF = 27,
	MAP_TASK_STORAGE = 29,
};

#define BPF_NOEXIST 1
#define BPF_F_NO_PREALLOC (1 << 0)
#define BPF_F_MMAPABLE (1 << 10)
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0

struct task_struct;
struct mm_struct;
struct pt_regs;
struct seq_file;

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const ktime_get_ns)(void) = (void *)5;
static long (*const map_push_elem)(void *map, const void *value, u64 flags) = (void *)87;
static long (*const map_pop_elem)(void *map, void *value) = (void *)88;
static long (*const probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static long (*const seq_write)(struct seq_file *seq, const void *data, u32 size) = (void *)127;
static void *(*const ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const ringbuf_submit)(void *record, u64 flags) = (void *)132;
static u64 (*const ringbuf_query)(void *ring, u64 what) = (void *)134;
static void *(*const task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static long (*const task_storage_delete)(void *map, struct task_struct *task) = (void *)157;
static struct task_struct *(*const get_current_task_btf)(void) = (void *)158;
static struct pt_regs *(*const task_pt_regs)(struct task_struct *task) = (void *)175;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long orig_ax, di, si, dx, r10;
};

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	u16 i_mode;
	unsigned long i_ino;
	s64 i_size;
	struct super_block *i_sb;
};

struct qstr {
	const unsigned char *name;
};

struct lockref {
	int count;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	struct lockref d_lockref;
};

struct vfsmount {
	struct dentry *mnt_root;
	struct super_block *mnt_sb;
};

struct mount {
	struct vfsmount mnt;
	int mnt_id;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

/* A walk along a path that is under way, and the inode of how far it has come. */
struct nameidata {
	struct path path;
	struct inode *inode;
};

struct file {
	u32 f_mode;
	struct inode *f_inode;
	void *private_data;
	struct path f_path;
};

/* What overlay and FUSE map for the file that was opened: one of the file system beneath. */
struct backing_file {
	struct path user_path;
};

struct fdtable {
	u32 max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct vm_area_struct {
	unsigned long vm_start, vm_end;
	struct mm_struct *vm_mm;
	struct file *vm_file;
};

struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long address;
};

struct sock_common {
	u16 skc_family;
};

struct sock {
	struct sock_common __sk_common;
};

struct socket {
	struct sock *sk;
};

struct task_io_accounting {
	u64 rchar, read_bytes;
};

struct rq {
	u64 clock;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};

/* What /proc/PID/schedstat says: how often the task got a CPU, the sum of all times on a run queue without one, when it last
 * got one, and since when it is on a queue. */
struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay, last_arrival, last_queued;
};

/* A program that is being executed. */
struct linux_binprm {
	unsigned secureexec : 1;
};

typedef struct {
	u32 val;
} kuid_t, kgid_t;

struct user_namespace {
	kuid_t owner;
};

/* One word in all kernels: first as two halves, the lower one first. */
typedef struct {
	u64 val;
} kernel_cap_t;

struct cred {
	kuid_t uid, suid, euid;
	kgid_t gid, sgid, egid;
	kernel_cap_t cap_permitted, cap_ambient;
	struct user_namespace *user_ns;
};

struct mm_struct {
	struct user_namespace *user_ns;
	unsigned long flags;
};

/* From 6.18 on the flags are a bitmap, whose first word is what they were. */
typedef struct {
	unsigned long __mm_flags[1];
} mm_flags_t;

struct mm_struct___bitmap {
	mm_flags_t flags;
};

struct task_struct {
	u32 __state;
	u32 flags;
	u32 pid, tgid;
	int exit_code;
	unsigned in_iowait : 1;
	struct task_struct *real_parent, *group_leader;
	const struct cred *real_cred;
	u64 start_boottime;
	char comm[16];
	struct mm_struct *mm;
	struct files_struct *files;
	struct nameidata *nameidata;
	struct task_io_accounting ioac;
	struct sched_entity se;
	struct sched_info sched_info;
	void *bpf_storage;
};

#pragma clang attribute pop

/* Contexts of iterators have a fixed layout. */
struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#define TASK_STOPPED_OR_TRACED (0x4 | 0x8)
#define TASK_WAKING 0x200
#define PF_EXITING 0x4

/* Of the flags of an mm: whether its user may look into it (SUID_DUMP_USER) is what two bits say. */
#define DUMPABLE_MASK 3
#define DUMPABLE_BY_USER 1

/* Capabilities by which a task opens files that its user may not, or becomes another user: CAP_CHOWN, DAC_OVERRIDE,
 * DAC_READ_SEARCH, FOWNER, SETGID and SETUID. */
#define CAPS_OF_OTHERS 0xcf

#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFDIR 0040000
#define S_IFBLK 0060000
#define S_IFIFO 0010000

/*
 * Reads a field behind a pointer that the verifier does not follow; and a pointer in a trusted struct (the task of a
 * tracepoint, or the current one) that many paths lead to: for each such load on each path, verifiers of today look through
 * all types of the kernel for several names. On 6.18 two of them were 0.9 s of the 1.45 s of CPU time that loading took.
 */
#define READ(to, field) probe_read_kernel(&(to), sizeof(to), &(field))

enum { FIELD_EXISTS = 2 };
#define HAS_FIELD(field) __builtin_preserve_field_info(field, FIELD_EXISTS)

/* A field of one bit lies in a word whose place and width differ between kernels: a plain read through these
 * structs would take another bit. Little-endian. */
enum { BIT_OFFSET = 0, BIT_SIZE = 1, BIT_LEFT_SHIFT = 4, BIT_RIGHT_SHIFT = 5 };
#define READ_BIT(to, object, field)                                                                             \
	do {                                                                                                    \
		u64 word = 0;                                                                                   \
		probe_read_kernel(&word, __builtin_preserve_field_info((object)->field, BIT_SIZE),              \
				  (void *)(object) + __builtin_preserve_field_info((object)->field, BIT_OFFSET)); \
		word <<= __builtin_preserve_field_info((object)->field, BIT_LEFT_SHIFT);                        \
		word >>= __builtin_preserve_field_info((object)->field, BIT_RIGHT_SHIFT);                       \
		(to) = word;                                                                                    \
	} while (0)

INLINE bool in_iowait(struct task_struct *task)
{
	bool waits;

	READ_BIT(waits, task, in_iowait);
	return waits;
}

/* Whether the program gains privilege by being executed: set-uid, set-gid, capabilities of the file. */
INLINE bool gains_privilege(struct linux_binprm *program)
{
	bool gains = false;

	if (HAS_FIELD(program->secureexec))
		READ_BIT(gains, program, secureexec);
	return gains;
}

#endif
