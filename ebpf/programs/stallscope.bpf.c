/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where the time of a job's tasks goes: on a CPU, waiting for one, or blocked, and in what.
 *
 * By default nothing is hooked but the scheduler. sys_enter and sys_exit are attached only while somebody asks
 * for them. Contexts are taken as arrays of u64.
 */
#include "reads.h"
#include "saves.h"
#include "switching.h"
#include "tasks.h"

SEC("tp_btf/sched_switch")
int sched_switch(u64 *ctx)
{
	bool preempted = ctx[0];
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct task_slot *leaving = find_slot(prev), *coming = find_slot(next);
	u64 now;

	if (!leaving && !coming)
		return 0;
	now = ktime_get_ns();
	if (leaving)
		leave_cpu(leaving, prev, preempted, now);
	if (coming)
		get_cpu(coming, next, now);
	return 0;
}

SEC("tp_btf/sched_waking")
int sched_waking(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0], *current;
	struct task_slot *slot = find_slot(task), *waker;
	u32 bits = 0;
	u64 now;

	if (!slot)
		return 0;
	now = ktime_get_ns();
	if (slot->state == STATE_BLOCKED) {
		current = get_current_task_btf();
		waker = find_slot(current);
		if (waker)
			bits = woken_by(slot, task, waker, current, now);
	}
	slot->scratch.wake_ns = (now & ~(u64)WOKEN_BITS) | bits;
	return 0;
}

SEC("tp_btf/sched_process_fork")
int sched_process_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct task_slot *of_parent = find_slot(parent), *slot;
	struct seed of;
	u32 leader = 0;

	if (!of_parent)
		return 0;
	if (child->tgid == of_parent->tgid)
		leader = of_parent->flags & FLAG_LEADER ? of_parent->scratch.index + 1 : of_parent->scratch.leader;
	of.root = of_parent->scratch.root;
	of.user = of_parent->user;
	of.counted = 0;
	slot = track(child, &of, leader, STATE_RUNNABLE, of_parent->flags & FLAG_PRIVILEGED);
	if (slot)
		send_task_new(reserve_presence(slot, sizeof(struct task_new)), slot, KIND_TASK_NEW, slot->first_seen_ns);
	return 0;
}

/* A thread that executes a program takes its leader's number, and when that began. */
SEC("tp_btf/sched_process_exec")
int sched_process_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct task_slot *slot = find_slot(task);
	u32 flags = FLAG_WATCHED | FLAG_LEADER;

	if (!slot)
		return 0;
	slot->tid = task->pid;
	slot->start_boottime_ns = task->start_boottime;
	slot->scratch.leader = 0;
	/* Before anything that the program does, and for good: what it starts may have the same privilege. */
	if (gains_privilege((void *)ctx[2]))
		flags |= FLAG_PRIVILEGED;
	__sync_fetch_and_or(&slot->flags, flags);
	note_owner(slot, task);
	probe_read_kernel(slot->comm, sizeof(slot->comm), task->comm);
	send_task_new(reserve_presence(slot, sizeof(struct task_new)), slot, KIND_TASK_EXEC, ktime_get_ns());
	return 0;
}

/* Thread names are set after the thread runs: pt_data_worker, pt_data_pin. */
SEC("tp_btf/task_rename")
int task_rename(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct task_slot *slot = find_slot(task);

	if (!slot)
		return 0;
	probe_read_kernel(slot->comm, sizeof(slot->comm), (void *)ctx[1]);
	note_name(slot);
	send_task_new(reserve(slot, sizeof(struct task_new)), slot, KIND_TASK_EXEC, ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_process_exit")
int sched_process_exit(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct task_slot *slot = find_slot(task);
	u64 now = ktime_get_ns();
	struct task_exit *record;

	if (!slot)
		return 0;
	catch_up(slot, task, BLOCKED_OTHER, now);
	begin_write(slot);
	copy_bytes_read(slot, task);
	book_running(slot, now);
	credit_leader(slot, now);
	if (slot->flags & FLAG_WATCHED && slot->since_ns > slot->slice_start_ns)
		send_slice(slot, slot->since_ns, true);
	slot->state = STATE_EXITED;
	end_write(slot);

	record = reserve_presence(slot, sizeof(*record));
	if (record) {
		fill_header(&record->header, slot, KIND_TASK_EXIT, sizeof(*record), now);
		record->status = task->exit_code;
		record->pad = 0;
		record->total = slot->total;
		submit(record);
	}
	task_storage_delete(&slot_of, task);
	return 0;
}

SEC("tp_btf/sys_enter")
int sys_enter(u64 *ctx)
{
	struct task_struct *task = get_current_task_btf();
	struct task_slot *slot = find_slot(task);
	struct pt_regs *regs = (void *)ctx[0];
	long nr = ctx[1];
	enum deed deed;
	u32 kind;
	u64 now;

	if (!slot)
		return 0;
	deed = deed_of(nr);
	if (slot->flags & FLAG_LEADER)
		note_save(slot, task, regs, deed, nr);
	if (!may_read(deed))
		return 0;
	kind = kind_of_syscall(task, regs, deed, true);
	if (kind == BLOCKED_FILE_READ || kind == BLOCKED_NET) {
		now = ktime_get_ns();
		catch_up(slot, task, kind, now);
		enter_read(slot, now);
	} else if (kind == BLOCKED_PIPE && nr == NR_READ && regs->dx == 4 && slot->flags & FLAG_WATCHED) {
		slot->scratch.header_fd = regs->di + 1;
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int sys_exit(u64 *ctx)
{
	struct task_slot *slot = find_slot(get_current_task_btf());

	if (!slot)
		return 0;
	if (slot->scratch.reading & READING_NOW)
		leave_read(slot, ktime_get_ns());
	if (slot->scratch.header_fd) {
		if (ctx[1] == 4)
			send_batch_read(slot, ktime_get_ns());
		slot->scratch.header_fd = 0;
	}
	return 0;
}

/*
 * Tracks the tasks of the processes in `seeds` and of their children, and writes a task_new for each, known or
 * new. User space repeats it until nothing new comes: a process that forks behind the iterator's back is
 * tracked by the fork hook, or found in the next round.
 */
SEC("iter/task")
int seed(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_slot *slot;
	struct task_new record;
	struct seed *of, here;
	u32 tgid, parent, leader, before = SEEN_BEFORE;

	if (!task || task->flags & PF_EXITING)
		return 0;
	tgid = task->tgid;
	of = map_lookup_elem(&seeds, &tgid);
	if (!of) {
		parent = task->real_parent->tgid;
		of = map_lookup_elem(&seeds, &parent);
		if (!of)
			return 0;
		map_update_elem(&seeds, &tgid, of, BPF_NOEXIST);
	}
	here = *of;
	here.counted = map_lookup_elem(&seeds, &before) != NULL;
	leader = task->pid == tgid ? 0 : leader_slot(task);
	slot = find_slot(task);
	if (slot) {
		/* A thread may come before its leader where numbers have wrapped. */
		slot->scratch.leader = leader;
	} else {
		slot = track(task, &here, leader, task->__state ? STATE_BLOCKED : STATE_RUNNING, FLAG_AT_ATTACH);
		if (!slot)
			return 0;
		/* It may have executed a program after its owner was noted and before the exec hook could find its slot. */
		if (has_others_rights(slot->uid, task))
			__sync_fetch_and_or(&slot->flags, FLAG_PRIVILEGED);
	}
	/* It may have passed the exit hook before it was tracked. The slot is then swept up by user space. */
	if (task->flags & PF_EXITING && !task_storage_delete(&slot_of, task)) {
		slot->state = STATE_EXITED;
		return 0;
	}
	fill_task_new(&record, slot, KIND_TASK_NEW, slot->first_seen_ns);
	seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

/* Forgets the tasks whose root is in `seeds`, and writes their slots' numbers. */
SEC("iter/task")
int release(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_slot *slot;
	u32 root, index;

	if (!task)
		return 0;
	slot = find_slot(task);
	if (!slot)
		return 0;
	root = slot->scratch.root;
	if (!map_lookup_elem(&seeds, &root))
		return 0;
	index = slot->scratch.index;
	if (!task_storage_delete(&slot_of, task))
		seq_write(ctx->meta->seq, &index, sizeof(index));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
