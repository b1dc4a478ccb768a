/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Switches that the kernel did not trace.
 *
 * Under some hypervisors a CPU runs without its tracepoints, perf's among them, while certain tasks are current: switches away
 * from them are not traced. A task may then get its CPU, leave it, or do both many times without a sched_switch. The scheduler
 * counts all the same, so that the next event of the task finds how often it got a CPU, how long it ran and how long it was on
 * run queues since the event before; the rest it slept. In which order is not known, in what neither, unless the last event was
 * that it went to sleep.
 */
#ifndef STALLSCOPE_UNTRACED_H
#define STALLSCOPE_UNTRACED_H

#include "account.h"
#include "files.h"

INLINE bool keeps_run_delay(struct task_struct *task)
{
	return HAS_FIELD(task->sched_info) && HAS_FIELD(task->se.cfs_rq->rq);
}

/* Keeps what the scheduler has counted up to now, and will have when a task that is on a queue has got its CPU. */
INLINE void note_counts(struct task_slot *slot, struct task_struct *task)
{
	u64 queued_ns, clock_ns;

	if (!keeps_run_delay(task))
		return;
	queued_ns = task->sched_info.last_queued;
	clock_ns = task->se.cfs_rq->rq->clock;
	slot->scratch.exec_ns = task->se.sum_exec_runtime;
	slot->scratch.arrivals = task->sched_info.pcount + (queued_ns != 0);
	slot->scratch.run_delay_ns = task->sched_info.run_delay;
	if (queued_ns && clock_ns > queued_ns)
		slot->scratch.run_delay_ns += clock_ns - queued_ns;
}

/* The same for a task that leaves its CPU: of what it has run. */
INLINE void note_run(struct task_slot *slot, struct task_struct *task)
{
	if (keeps_run_delay(task))
		slot->scratch.exec_ns = task->se.sum_exec_runtime;
}

INLINE bool has_untraced(struct task_slot *slot, struct task_struct *task)
{
	return keeps_run_delay(task) && (u32)task->sched_info.pcount != slot->scratch.arrivals;
}

/* `ns`, but no more than what is left of the time from `start` to `end`. */
INLINE u64 at_most(u64 ns, u64 start, u64 end)
{
	return end <= start ? 0 : ns < end - start ? ns : end - start;
}

/* For how long `task` has run beyond what is booked. */
INLINE u64 unbooked_ns(struct task_slot *slot, struct task_struct *task)
{
	u64 ran_ns = task->se.sum_exec_runtime - slot->scratch.exec_ns;
	u64 booked_ns = slot->state == STATE_RUNNING ? slot->since_ns - slot->scratch.run_start_ns : 0;

	return ran_ns > booked_ns ? ran_ns - booked_ns : 0;
}

/* A sleep in a futex by what its waker handed on, where that wake-up is not an older one than the one that ended the sleep. */
INLINE u32 handed_on(struct task_slot *slot, u32 kind)
{
	u64 woken = slot->scratch.wake_ns;

	if (kind != BLOCKED_FUTEX || woken <= slot->scratch.run_start_ns)
		return kind;
	if (woken & WOKEN_FROM_READ)
		return BLOCKED_FUTEX_READ;
	return woken & WOKEN_FROM_NET ? BLOCKED_FUTEX_NET : kind;
}

/*
 * Books the time up to when `task`, the current one, last got its CPU. Where it is not known what it slept in, that is
 * `kind`.
 */
static __attribute__((noinline)) void book_untraced(struct task_slot *slot, struct task_struct *task, u32 kind, u64 now)
{
	u64 start = slot->since_ns, clock_ns = task->se.cfs_rq->rq->clock;
	u64 ago_ns = at_most(clock_ns - task->sched_info.last_arrival, start, now), arrived = now - ago_ns;
	u64 ran_ns = unbooked_ns(slot, task);
	u64 queued_ns = task->sched_info.run_delay - slot->scratch.run_delay_ns;
	u64 slept_until;

	ran_ns = ran_ns > ago_ns ? at_most(ran_ns - ago_ns, start, arrived) : 0;
	queued_ns = at_most(queued_ns, start + ran_ns, arrived);
	slept_until = arrived - queued_ns - ran_ns;
	if (slot->state == STATE_BLOCKED)
		kind = handed_on(slot, slot->blocked_in);
	if (kind >= BLOCKED_KINDS)
		kind = BLOCKED_OTHER;
	if (slept_until > start && is_file_wait(kind))
		count_nameless_wait(slot, slept_until - start);
	if (slept_until > start && (kind == BLOCKED_FILE_READ || kind == BLOCKED_FAULT))
		slot->scratch.has_read_ns = slept_until;
	book(slot, TIME_BLOCKED + kind, slept_until);
	book_runnable(slot, slept_until + queued_ns);
	book(slot, TIME_CPU, arrived);
	slot->scratch.notes &= ~(NOTE_FROM_NET | NOTE_FROM_READ);
	note_counts(slot, task);
	slot->scratch.exec_ns -= ago_ns;
	slot->scratch.run_start_ns = arrived;
	slot->state = STATE_RUNNING;
}

/* Brings the slot of `task`, the current one, up to date where switches of it were not traced. */
INLINE void catch_up(struct task_slot *slot, struct task_struct *task, u32 kind, u64 now)
{
	if (!has_untraced(slot, task))
		return;
	begin_write(slot);
	book_untraced(slot, task, kind, now);
	end_write(slot);
}

/* `task` gets a CPU: books what it has run since its last event without a trace, and says whether it may have. */
INLINE bool book_untraced_runs(struct task_slot *slot, struct task_struct *task, u64 now)
{
	if (slot->state == STATE_RUNNING ? !keeps_run_delay(task) : !has_untraced(slot, task))
		return false;
	book(slot, TIME_CPU, slot->since_ns + at_most(unbooked_ns(slot, task), slot->since_ns, now));
	return true;
}

#endif
