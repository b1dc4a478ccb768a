/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The account of one task.
 *
 * Writers of a slot. Its times, state and slice are written by one CPU at a time: in sched_switch by the CPU
 * that the task leaves or gets (which the scheduler orders: a task is not picked before it has left), and in
 * hooks that run in the task itself, with preemption off. Before its number is in task storage a slot belongs
 * to the code that fills it, after the task's exit to user space. So these writes need no lock, and `seq` is enough for
 * readers in user space.
 *
 * What other CPUs write: `scratch.wake_ns` and `scratch.has_read_ns` (one store each, in sched_waking, see there) and the
 * leader's `sibling_cpu_ns` and `sibling_runnable_ns` (atomic). A sched_waking that looked the slot up just before the task's
 * end may store the first two into a slot that is free by now: they lie before everything that the next owner does, and
 * are ignored there.
 */
#ifndef STALLSCOPE_ACCOUNT_H
#define STALLSCOPE_ACCOUNT_H

#include "maps.h"

enum note {
	/* The thread is named pt_data_pin. */
	NOTE_PIN = 1,
	/* Its last sleep was in a socket or in epoll, or was ended by a thread of which that holds. */
	NOTE_FROM_NET = 2,
	/* Its last sleep was in a read of a file, a page fault or a network socket. */
	NOTE_FROM_READ = 4,
	/* Its sleep in a futex is one for a lock (see sleeps_for_lock). */
	NOTE_LOCK = 8,
};

/* In the lowest bits of `scratch.wake_ns`. */
enum woken {
	/* The waker itself had just come from the network. */
	WOKEN_FROM_NET = 1,
	/* The thread is to hand something on: see begin_errand. */
	WOKEN_ERRAND = 2,
	/* The waker has read a file in the sleep that it ends: see hand_on_read. */
	WOKEN_FROM_READ = 4,
	WOKEN_BITS = 7,
};

enum reading {
	/* Inside a burst of reads (see reads.h) ... */
	READING_BURST = 1,
	/* ... and inside one of its system calls. */
	READING_NOW = 2,
};

/* Reads without system calls between them for longer than this are two bursts, and the time between them is
 * not reading. Between the calls for one sample lie some 50 us of the interpreter's. */
#define BURST_GAP_NS 200000

/* Index into `struct times`, seen as an array. */
enum {
	TIME_CPU = 0,
	TIME_CPU_READ = 1,
	TIME_RUNNABLE = 2,
	TIME_BLOCKED = 3,
	TIMES = TIME_BLOCKED + BLOCKED_KINDS,
};

#define barrier() asm volatile("" ::: "memory")

INLINE void begin_write(struct task_slot *slot)
{
	slot->seq++;
	barrier();
}

INLINE void end_write(struct task_slot *slot)
{
	barrier();
	slot->seq++;
}

/*
 * The slot of `task`, or NULL when it is not tracked. The first test spares everybody else a call.
 *
 * A number may stay in the storage of a task that has left: up to 6.1 the kernel refuses to delete it when it
 * interrupted another use of task storage. Then the slot says EXITED or FREE, or has a younger generation.
 */
INLINE struct task_slot *find_slot(struct task_struct *task)
{
	struct slot_ref *ref;
	struct task_slot *slot;

	if (!task->bpf_storage)
		return NULL;
	ref = task_storage_get(&slot_of, task, NULL, 0);
	if (!ref)
		return NULL;
	slot = map_lookup_elem(&slots, &ref->index);
	if (!slot || slot->generation != ref->generation)
		return NULL;
	return slot->state != STATE_FREE && slot->state != STATE_EXITED ? slot : NULL;
}

/*
 * The user who may know what the task in `slot` does; root may of all. Of one with rights that its user lacks, root alone
 * may. `Identity::is_known_to` in slots.rs is the same.
 */
INLINE u32 known_to(const struct task_slot *slot)
{
	return slot->flags & FLAG_PRIVILEGED ? 0 : slot->uid;
}

/* Whether records of the task in `slot` may say what the one in `other` does. */
INLINE bool may_tell_of(const struct task_slot *slot, const struct task_slot *other)
{
	u32 reader = known_to(slot);

	return reader == 0 || reader == known_to(other);
}

INLINE void fill_header(struct header *header, const struct task_slot *slot, u32 kind, u32 size, u64 time_ns)
{
	header->kind = kind;
	header->size = size;
	header->slot = slot->scratch.index;
	header->tid = slot->tid;
	header->tgid = slot->tgid;
	header->time_ns = time_ns;
}

/*
 * Sends what no slice has carried yet, up to `end`. When the ring buffer is full the next slice carries it. What siblings did is
 * known up to now alone, so that only a slice which ends now carries it: in a sleep that ends now they did most of it.
 */
static __attribute__((noinline)) void send_slice(struct task_slot *slot, u64 end, bool ends_now)
{
	struct slice *slice = reserve(slot, sizeof(*slice));
	u64 *part, *total = (u64 *)&slot->total, *sent = (u64 *)&slot->sent;
	u64 sibling_cpu_ns = ends_now ? slot->sibling_cpu_ns : slot->sent_sibling_cpu_ns;
	u64 sibling_runnable_ns = ends_now ? slot->sibling_runnable_ns : slot->sent_sibling_runnable_ns;

	if (!slice)
		return;
	fill_header(&slice->header, slot, KIND_SLICE, sizeof(*slice), end);
	slice->start_ns = slot->slice_start_ns;
	part = (u64 *)&slice->times;
	for (u32 i = 0; i < TIMES; i++) {
		part[i] = total[i] - sent[i];
		sent[i] = total[i];
	}
	slice->sibling_cpu_ns = sibling_cpu_ns - slot->sent_sibling_cpu_ns;
	slice->sibling_runnable_ns = sibling_runnable_ns - slot->sent_sibling_runnable_ns;
	slice->rchar = slot->rchar - slot->scratch.sent_rchar;
	slice->read_bytes = slot->read_bytes - slot->scratch.sent_read_bytes;
	slot->sent_sibling_cpu_ns = sibling_cpu_ns;
	slot->sent_sibling_runnable_ns = sibling_runnable_ns;
	slot->scratch.sent_rchar = slot->rchar;
	slot->scratch.sent_read_bytes = slot->read_bytes;
	slot->slice_start_ns = end;
	submit(slice);
}

/*
 * Books the time from `since_ns` to `end` as `what`, an index into `struct times`.
 *
 * A long interval is a slice of its own: what is pending goes first. Short ones wait until together they are
 * long enough. So slices follow each other without a gap, none mixes a long interval of one kind with others, and
 * there are at most two in every `min_slice_ns`.
 */
static __attribute__((noinline)) void book(struct task_slot *slot, u32 what, u64 end)
{
	u64 *total = (u64 *)&slot->total;
	u64 start = slot->since_ns;
	u64 length = end - start;
	bool watched = slot->flags & FLAG_WATCHED;

	/* Clocks of two CPUs may differ by some ns. */
	if (end <= start || what >= TIMES)
		return;
	if (watched && length >= min_slice_ns && start > slot->slice_start_ns)
		send_slice(slot, start, false);
	total[what] += length;
	if (what == TIME_CPU_READ)
		total[TIME_CPU] += length;
	slot->since_ns = end;
	if (watched && end - slot->slice_start_ns >= min_slice_ns)
		send_slice(slot, end, true);
}

/* Books the time on the CPU up to `now`, and whether it went into reads. */
INLINE void book_running(struct task_slot *slot, u64 now)
{
	if (!(slot->scratch.reading & READING_BURST)) {
		book(slot, TIME_CPU, now);
	} else if (slot->scratch.reading & READING_NOW) {
		book(slot, TIME_CPU_READ, now);
	} else {
		/* The task left its CPU, or read again after a long while: the burst was over. */
		book(slot, TIME_CPU_READ, slot->scratch.read_end_ns);
		book(slot, TIME_CPU, now);
		slot->scratch.reading = 0;
	}
}

/*
 * An errand: what a thread that is not watched does from its wake-up until it has handed on what it was woken for
 * (a worker's feeder thread a batch, its resource sharer a descriptor). Such a thread sends no slices, so that `sent`
 * and `slice_start_ns` are free to keep its account as of the errand's beginning. Like its times they are written by
 * one CPU at a time: the one that the thread gets, or the one it runs on.
 */
INLINE void begin_errand(struct task_slot *slot, u64 now)
{
	slot->sent = slot->total;
	slot->slice_start_ns = now;
}

/* Adds this thread's time on the CPU to what its leader knows of its siblings. */
INLINE void credit_leader(struct task_slot *slot, u64 now)
{
	u32 index = slot->scratch.leader - 1;
	u64 start = slot->scratch.run_start_ns;
	struct task_slot *leader;

	if (!slot->scratch.leader)
		return;
	if (start < slot->scratch.sibling_until_ns)
		start = slot->scratch.sibling_until_ns;
	leader = map_lookup_elem(&slots, &index);
	/* The leader may have ended before its threads. */
	if (now > start && leader && leader->tgid == slot->tgid && leader->flags & FLAG_LEADER)
		__sync_fetch_and_add(&leader->sibling_cpu_ns, now - start);
	slot->scratch.sibling_until_ns = now;
}

/*
 * A thread gets its CPU after it was runnable since `from`. What of that lies in a sleep of its leader that still lasts is
 * kept until it is known whether this is the thread that ends the sleep: see tell_late. The leader's slot is written
 * by other CPUs meanwhile; each word read of it here is of one moment, and a sleep that ends or begins between two of them
 * has a part of it taken for another's, which is bounded by the sleep when user space uses it.
 */
INLINE void note_late(struct task_slot *slot, u64 from, u64 now)
{
	u32 index = slot->scratch.leader - 1;
	struct task_slot *leader;
	u64 asleep_since;

	if (!slot->scratch.leader)
		return;
	leader = map_lookup_elem(&slots, &index);
	if (!leader || leader->tgid != slot->tgid || leader->state != STATE_BLOCKED)
		return;
	asleep_since = leader->since_ns;
	if (slot->scratch.late_for_ns != asleep_since) {
		slot->scratch.late_for_ns = asleep_since;
		slot->scratch.late_ns = 0;
	}
	if (from < asleep_since)
		from = asleep_since;
	if (now > from)
		slot->scratch.late_ns += now - from;
}

/* `slot` ends the sleep of `leader`: for so long it was itself without a CPU, and the leader slept for want of one. */
INLINE void tell_late(struct task_slot *slot, struct task_slot *leader)
{
	if (slot->scratch.late_for_ns != leader->since_ns)
		return;
	__sync_fetch_and_add(&leader->sibling_runnable_ns, slot->scratch.late_ns);
	slot->scratch.late_ns = 0;
}

/* Books the time without a CPU up to `now`, when the task gets one. */
INLINE void book_runnable(struct task_slot *slot, u64 now)
{
	u64 from = slot->since_ns;

	book(slot, TIME_RUNNABLE, now);
	note_late(slot, from, now);
}

/* For slices, which watched tasks alone send. */
INLINE void copy_bytes_read(struct task_slot *slot, struct task_struct *task)
{
	if (!(slot->flags & FLAG_WATCHED))
		return;
	slot->rchar = task->ioac.rchar;
	slot->read_bytes = task->ioac.read_bytes;
}

#endif
