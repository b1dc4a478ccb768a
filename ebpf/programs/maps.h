/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs share with each other and with user space. */
#ifndef STALLSCOPE_MAPS_H
#define STALLSCOPE_MAPS_H

#include "kernel.h"

/* The account of every tracked task; user space maps it. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_TASKS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct task_slot);
} slots SEC(".maps");

struct slot_ref {
	u32 index;
	/* The slot's when it was given to the task. */
	u32 generation;
};

/* Which slot is a task's. Task storage alone is found without hashing and goes away with the task. */
struct {
	MAP_UINT(type, MAP_TASK_STORAGE);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, int);
	MAP_TYPE(value, struct slot_ref);
} slot_of SEC(".maps");

/* Filled by user space, which puts a slot back when it has dealt with the task's end. */
struct {
	MAP_UINT(type, MAP_QUEUE);
	MAP_UINT(max_entries, MAX_TASKS);
	MAP_TYPE(value, u32);
} free_slots SEC(".maps");

/* Where a process belongs: the tgid of the tree's root, and the user who is charged for its slots. */
struct seed {
	u32 root;
	u16 user;
	/* What it is not given a slot for was counted. */
	u16 counted;
};

/* In `seeds` it says that this is not the first look at the tasks that are there. */
#define SEEN_BEFORE 0xffffffff

/* The processes (tgid) whose tasks the iterator `seed` is to track. The iterator adds their children. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
	MAP_UINT(max_entries, MAX_TASKS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct seed);
} seeds SEC(".maps");

/* Who has how many slots, files and mounts. User space, which maps it, gives users their places and writes what is returned. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(map_flags, BPF_F_MMAPABLE);
	MAP_UINT(max_entries, MAX_USERS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct user_slots);
} users SEC(".maps");

struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 4 << 20);
} events SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, LOST_REASONS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} lost SEC(".maps");

/* The files that tasks were blocked in. Of a million small ones user space removes those that were not waited for of
 * late, from the user with the most first: a map that did so by itself would let one user's files take the place of all
 * others'. The mounts keep the sums. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_FILES);
	MAP_TYPE(key, struct file_key);
	MAP_TYPE(value, struct kept_file);
} file_waits SEC(".maps");

/* The same by mount, `inode` being 0; and without any number for what no file is known of. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, MAX_MOUNTS);
	MAP_TYPE(key, struct file_key);
	MAP_TYPE(value, struct mount_wait);
} mount_waits SEC(".maps");

/* Where the stack of a task that faulted is looked at: it is too large for a program's own. */
#define FAULT_WORDS 128

struct fault_stack {
	u64 words[FAULT_WORDS];
};

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct fault_stack);
} fault_stacks SEC(".maps");

/* Set by the loader. */
const volatile u64 min_slice_ns = 1000000;
const volatile u64 wakeup_bytes = 1 << 20;
const volatile u64 user_bytes = 2 << 20;
const volatile u64 max_tasks = MAX_TASKS;
const volatile u64 max_files = MAX_FILES;
const volatile u64 max_mounts = MAX_MOUNTS;

/* The loader refuses an object whose layouts are not its own. */
const u32 abi_sizes[4] SEC(".rodata.abi") = {
	ABI_VERSION, sizeof(struct task_slot), sizeof(struct slice), sizeof(struct task_exit),
};

INLINE void count_lost(u32 reason)
{
	u64 *count = map_lookup_elem(&lost, &reason);

	if (count)
		*count += 1;
}

/*
 * User space looks at the ring a few times a second anyway: waking it for every record would cost an
 * interrupt each, on the CPU of the job. It is woken when the ring fills faster than that.
 */
INLINE void submit(void *record)
{
	bool urgent = ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= wakeup_bytes;

	ringbuf_submit(record, urgent ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* For so long a user's tasks may send `user_bytes`. */
#define SENT_WINDOW_NS 100000000

/*
 * Whether one more record of `size` bytes is within what a user's tasks may send: what they do without limit (a name set anew, a
 * process that forks) is not to fill the ring for others, nor its reader's time. A quarter of it is kept for the beginnings and
 * ends of tasks: a slice that is not sent is carried by the next, these by nothing. Two CPUs at once may begin a window twice,
 * and exceed it by what they have sent. Root is not limited, as with slots.
 */
static __attribute__((noinline)) bool may_send(u32 user, u32 size, bool of_presence)
{
	struct user_slots *own = map_lookup_elem(&users, &user);
	u64 now = ktime_get_ns(), most = of_presence ? user_bytes : user_bytes / 4 * 3;

	if (!own || user == USER_ROOT)
		return true;
	/* Clocks of two CPUs may differ by some ns. */
	if ((s64)(now - own->sent_since_ns) >= SENT_WINDOW_NS) {
		own->sent_since_ns = now;
		own->sent_bytes = 0;
	}
	if (own->sent_bytes + size > most) {
		__sync_fetch_and_add(&own->unsent, 1);
		return false;
	}
	__sync_fetch_and_add(&own->sent_bytes, size);
	return true;
}

INLINE void *reserve_within(const struct task_slot *slot, u32 size, bool of_presence)
{
	void *record;

	if (!may_send(slot->user, size, of_presence)) {
		count_lost(LOST_USER_RING);
		return NULL;
	}
	record = ringbuf_reserve(&events, size, 0);
	if (!record)
		count_lost(LOST_RING_FULL);
	return record;
}

/* For a record of what the task in `slot` does. */
INLINE void *reserve(const struct task_slot *slot, u32 size)
{
	return reserve_within(slot, size, false);
}

/* For a record that says that the task in `slot` is there, what it executes, or that it has ended. */
INLINE void *reserve_presence(const struct task_slot *slot, u32 size)
{
	return reserve_within(slot, size, true);
}

#endif
