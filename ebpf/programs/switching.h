/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A task leaves its CPU, is woken, gets a CPU.
 *
 * The event says what the time before it was, not the recorded state: up to leaving, a task ran; up to getting
 * a CPU it did not. So a missed event can mislabel one interval, never the sum.
 *
 * Off the CPU a task is runnable, if it was preempted, or blocked until its wake-up and runnable from then.
 * sched_waking runs on the waker's CPU and may overlap the sleeper's own sched_switch:
 *
 *   sleeper                                waker
 *   __state = INTERRUPTIBLE
 *   (no event yet)                         sched_waking: stores wake_ns while the slot says RUNNING
 *   sched_switch: reads __state            __state = TASK_WAKING, waits until the sleeper is off its CPU
 *
 * 1. The sleeper sees RUNNING or TASK_WAKING in its __state: it never slept, this is no BLOCKED. (The same test
 *    covers a sleep that a pending signal forbids, for which 6.1 still reports a blocking prev_state; and it
 *    needs no prev_state argument, which 5.15 does not have.)
 * 2. The store to __state came later than the sleeper's read: the slot says BLOCKED, and at the next switch the
 *    last wake-up is older than the sleep. As every sleep ends by a wake-up, it was this one if it came after
 *    the task last got its CPU: all the time since was runnable.
 * 3. The wake-up came while the sleeper was still on the runqueue: it goes on running, and the next sleep has a
 *    wake-up of its own that is younger. Only if that were missed could the old one be taken for it.
 *
 * Hence sched_waking does no accounting: it leaves a time, and the task's next switch splits by it.
 *
 * Where the kernel keeps schedstats, runnable is what they say: time on a run queue. A task that is woken on an idle CPU
 * gets onto its queue only when that CPU has left its idle state, which takes some 50 us in a virtual machine and
 * milliseconds where the host is short of CPU. Up to then nobody in this system was in its way, so it counts as the sleep.
 */
#ifndef STALLSCOPE_SWITCHING_H
#define STALLSCOPE_SWITCHING_H

#include "account.h"
#include "classify.h"
#include "files.h"
#include "untraced.h"

INLINE bool is_read(u32 kind)
{
	return kind == BLOCKED_FILE_READ || kind == BLOCKED_FAULT || kind == BLOCKED_NET;
}

INLINE u64 read_ns(const struct times *times)
{
	return times->blocked_ns[BLOCKED_FILE_READ] + times->blocked_ns[BLOCKED_FAULT] +
	       times->blocked_ns[BLOCKED_NET];
}

/* A short run between two sleeps in reads is part of the reading (copying out, faulting on, the next call):
 * the same rule as for bursts of calls in reads.h, as far as the scheduler alone can see it. */
INLINE bool between_reads(struct task_slot *slot, u32 kind, u64 now)
{
	return is_read(kind) && slot->scratch.notes & NOTE_FROM_READ && !slot->scratch.reading &&
	       now - slot->scratch.run_start_ns < BURST_GAP_NS;
}

/*
 * Whether the current task, which goes to sleep in a futex, waits for a lock and not for another thread's message. Python
 * waits for messages in semaphores (FUTEX_WAIT_BITSET), without a deadline or, as torch does for a batch, with one seconds
 * ahead. The interpreter's lock is a condition with a deadline of some milliseconds (sys.setswitchinterval), after which
 * its owner is asked to give it up; its mutex, as every mutex, is another command.
 */
#define LOCK_DEADLINE_NS 1000000000ULL

static __attribute__((noinline)) bool sleeps_for_lock(struct task_struct *task, u64 now)
{
	struct pt_regs *regs = task_pt_regs(task);
	u64 deadline[2] = {};

	if (regs->orig_ax != NR_FUTEX)
		return false;
	if ((regs->si & FUTEX_COMMAND) != FUTEX_WAIT_BITSET)
		return true;
	/* Without a deadline, or by another clock. */
	if (!regs->r10 || regs->si & FUTEX_CLOCK_REALTIME ||
	    probe_read_user(deadline, sizeof(deadline), (void *)regs->r10))
		return false;
	return deadline[0] * 1000000000ULL + deadline[1] < now + LOCK_DEADLINE_NS;
}

/*
 * When the sleep of `task` ended, which gets a CPU `now`: before the time that it spent on run queues since it left its last
 * one. 0 where the kernel doesn't say. sched_switch comes before the scheduler adds the queue that the task leaves now.
 */
INLINE u64 sleep_end(struct task_slot *slot, struct task_struct *task, u64 now)
{
	u64 queued_ns, clock_ns, delay_ns;

	if (!keeps_run_delay(task))
		return 0;
	queued_ns = task->sched_info.last_queued;
	clock_ns = task->se.cfs_rq->rq->clock;
	if (!queued_ns || clock_ns < queued_ns)
		return 0;
	delay_ns = task->sched_info.run_delay - slot->scratch.run_delay_ns + clock_ns - queued_ns;
	return delay_ns < now - slot->since_ns ? now - delay_ns : slot->since_ns;
}

/*
 * `kind`, by way of the slot. The verifier walks all that follows once for each constant that it may be; of what comes from
 * a map it knows nothing. Without this it looks at four times as many instructions, close to its limit.
 */
INLINE u32 unknown_to_verifier(struct task_slot *slot, u32 kind)
{
	slot->scratch.kind = kind;
	return *(volatile u32 *)&slot->scratch.kind;
}

INLINE void leave_cpu(struct task_slot *slot, struct task_struct *task, bool preempted, u64 now)
{
	u32 state = task->__state;
	bool blocks = !preempted && state != 0 && state != TASK_WAKING;
	u32 kind = blocks ? unknown_to_verifier(slot, kind_of_sleep(task, true)) : 0;

	catch_up(slot, task, blocks ? kind : BLOCKED_OTHER, now);
	begin_write(slot);
	copy_bytes_read(slot, task);
	if (blocks && between_reads(slot, kind, now))
		book(slot, TIME_CPU_READ, now);
	else
		book_running(slot, now);
	credit_leader(slot, now);
	slot->blocked_in = kind;
	note_run(slot, task);
	if (kind == BLOCKED_FUTEX && sleeps_for_lock(task, now))
		slot->scratch.notes |= NOTE_LOCK;
	else
		slot->scratch.notes &= ~NOTE_LOCK;
	barrier();
	slot->state = blocks ? STATE_BLOCKED : STATE_RUNNABLE;
	end_write(slot);
}

/* Whether a sleep in `kind` hands on what came over the network: see NOTE_FROM_NET. */
INLINE bool comes_from_net(struct task_struct *task, u32 kind)
{
	return kind == BLOCKED_NET || kind == BLOCKED_FUTEX_NET ||
	       (kind == BLOCKED_POLL && deed_of(task_pt_regs(task)->orig_ax) == DEED_EPOLL);
}

INLINE void book_sleep(struct task_slot *slot, struct task_struct *task, u64 now)
{
	u64 woken = slot->scratch.wake_ns, since = slot->since_ns, until = sleep_end(slot, task, now);
	u32 kind = slot->blocked_in;

	if (slot->state != STATE_BLOCKED)
		kind = unknown_to_verifier(slot, kind_of_sleep(task, false));
	kind = unknown_to_verifier(slot, handed_on(slot, kind));
	if (comes_from_net(task, kind))
		slot->scratch.notes |= NOTE_FROM_NET;
	else
		slot->scratch.notes &= ~NOTE_FROM_NET;
	if (is_read(kind))
		slot->scratch.notes |= NOTE_FROM_READ;
	else
		slot->scratch.notes &= ~NOTE_FROM_READ;
	if (kind >= BLOCKED_KINDS)
		kind = BLOCKED_OTHER;
	if (!until && woken > since)
		until = woken < now ? woken : now;
	else if (!until && woken < slot->scratch.run_start_ns)
		until = now;
	book(slot, TIME_BLOCKED + kind, until);
	if (until > since && is_file_wait(kind))
		count_file_wait(slot, task, kind, until - since, until);
	if (kind == BLOCKED_FILE_READ || kind == BLOCKED_FAULT)
		slot->scratch.has_read_ns = until;
	/* Not an older wake-up than the one that ended this sleep. */
	if (woken & WOKEN_ERRAND && woken > slot->scratch.run_start_ns && !(slot->flags & FLAG_WATCHED))
		begin_errand(slot, slot->since_ns);
	book_runnable(slot, now);
}

INLINE void get_cpu(struct task_slot *slot, struct task_struct *task, u64 now)
{
	begin_write(slot);
	/* RUNNING: it left its CPU without a trace, or between the iterator's look and its entry into task storage. Where the
	 * kernel doesn't say whether it slept, it was preempted unless it was woken since. */
	if (book_untraced_runs(slot, task, now) || slot->state == STATE_BLOCKED ||
	    (slot->state == STATE_RUNNING && slot->scratch.wake_ns > slot->since_ns))
		book_sleep(slot, task, now);
	else
		book_runnable(slot, now);
	note_counts(slot, task);
	slot->state = STATE_RUNNING;
	slot->scratch.run_start_ns = now;
	end_write(slot);
}

/* Sleeps shorter than this are no boundary of anything: the second part of a message, a game of ping-pong.
 * Records of them would fill the ring buffer. */
#define BRIEF_NS 20000

/* Records the errand that ends as `waker`, the current task, wakes the task that waited for it, and begins the next:
 * a thread that has more to hand on does not sleep in between. */
INLINE void end_errand(struct wait *wait, struct task_slot *waker, u64 now)
{
	u64 running_ns = now - waker->since_ns;
	struct times *total = &waker->total, *sent = &waker->sent;

	if (waker->flags & FLAG_WATCHED) {
		wait->errand_start_ns = 0;
		wait->errand_cpu_ns = 0;
		wait->errand_runnable_ns = 0;
		wait->errand_read_ns = 0;
		return;
	}
	wait->errand_start_ns = waker->slice_start_ns;
	wait->errand_cpu_ns = total->cpu_ns - sent->cpu_ns + running_ns;
	wait->errand_runnable_ns = total->runnable_ns - sent->runnable_ns;
	wait->errand_read_ns = read_ns(total) - read_ns(sent);
	begin_errand(waker, now);
	waker->sent.cpu_ns += running_ns;
}

INLINE void send_wait(struct task_slot *slot, struct task_slot *waker, u64 now)
{
	struct wait *wait = reserve(slot, sizeof(*wait));

	if (!wait)
		return;
	fill_header(&wait->header, slot, KIND_WAIT, sizeof(*wait), now);
	wait->start_ns = slot->since_ns;
	wait->waker_tid = waker->tid;
	wait->waker_tgid = waker->tgid;
	wait->blocked_in = slot->blocked_in;
	wait->pad = 0;
	end_errand(wait, waker, now);
	submit(wait);
}

INLINE void send_wake(struct task_slot *leader, struct task_slot *woken, u64 now)
{
	struct wake *wake = reserve(leader, sizeof(*wake));

	if (!wake)
		return;
	fill_header(&wake->header, leader, KIND_WAKE, sizeof(*wake), now);
	wake->woken_tid = woken->tid;
	wake->pad = 0;
	wake->cpu_ns = leader->total.cpu_ns + (now - leader->since_ns);
	submit(wake);
}

/* Whether a task wakes its peer on a Unix socket by this call: reading does too, as it frees buffer space to write. */
INLINE bool talks_to_peer(long nr)
{
	return nr == NR_READ || nr == NR_WRITE || nr == NR_SENDMSG || nr == NR_RECVMSG || nr == NR_CONNECT;
}

/*
 * `waker` ends a sleep of `slot` in a futex: whether for data that it has read from a file in that sleep, or that a thread has
 * which handed on to it. A thread in the middle has what it is handed: a reader wakes the one that makes a batch, and that
 * one the leader. Taking a lock from a thread is no handing on. What a thread has it keeps, as one read may serve many
 * batches; the leader asks for reads in its own sleep alone.
 */
INLINE bool hand_on_read(struct task_slot *slot, struct task_slot *waker)
{
	u64 has_read_ns = waker->scratch.has_read_ns;

	if (slot->scratch.notes & NOTE_LOCK)
		return false;
	if (slot->flags & FLAG_LEADER)
		return has_read_ns > slot->since_ns;
	if (has_read_ns > slot->scratch.has_read_ns)
		slot->scratch.has_read_ns = has_read_ns;
	return false;
}

/*
 * `waker`, the current task, wakes `task`. Interrupts (timers, the network) wake tasks too, while any task is
 * current: the waker's system call tells that it did it itself. Returns bits of `enum woken`.
 */
INLINE u32 woken_by(struct task_slot *slot, struct task_struct *task, struct task_slot *waker,
		    struct task_struct *waker_task, u64 now)
{
	long nr = task_pt_regs(waker_task)->orig_ax;
	bool watched = slot->flags & FLAG_WATCHED;
	bool same_process = slot->tgid == waker->tgid;
	bool within_job = !same_process && slot->scratch.root == waker->scratch.root;
	bool brief = now - slot->since_ns < BRIEF_NS;
	u32 bits = 0;

	catch_up(waker, waker_task, BLOCKED_OTHER, now);
	if (same_process)
		credit_leader(waker, now);
	if (!may_tell_of(slot, waker))
		return 0;
	if (slot->blocked_in == BLOCKED_PIPE && (nr == NR_WRITE || nr == NR_WRITEV)) {
		if (watched && !brief && within_job)
			send_wait(slot, waker, now);
	} else if (slot->blocked_in == BLOCKED_UNIX && talks_to_peer(nr)) {
		/* A tensor's handle comes over a Unix socket from a thread of the worker that made it. */
		if (watched && !brief && within_job)
			send_wait(slot, waker, now);
		if (!watched && within_job)
			bits = WOKEN_ERRAND;
	} else if (slot->blocked_in == BLOCKED_FUTEX && (nr == NR_FUTEX || nr == NR_FUTEX_WAKE)) {
		if (same_process && slot->flags & FLAG_LEADER)
			tell_late(waker, slot);
		if (watched && !brief && same_process && waker->scratch.notes & NOTE_PIN &&
		    !(slot->scratch.notes & NOTE_LOCK))
			send_wait(slot, waker, now);
		if (waker->flags & FLAG_LEADER && same_process && task_pt_regs(task)->si == FUTEX_UNTIMED_LOCK) {
			bits = WOKEN_ERRAND;
			if (!brief)
				send_wake(waker, slot, now);
		}
		if (same_process && hand_on_read(slot, waker))
			bits |= WOKEN_FROM_READ;
		if (waker->scratch.notes & NOTE_FROM_NET)
			bits |= WOKEN_FROM_NET;
	}
	return bits;
}

#endif
