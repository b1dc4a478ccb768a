/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tasks join a job, get a new name, and leave. */
#ifndef STALLSCOPE_TASKS_H
#define STALLSCOPE_TASKS_H

#include "account.h"
#include "untraced.h"
#include "classify.h"

/* Whether the name is "pt_data_pin", torch's thread that copies batches into pinned memory. */
INLINE bool is_pin_thread(const u8 *comm)
{
	u64 first = *(const u64 *)comm;
	u32 last = *(const u32 *)(comm + 8);

	return begins_with(first, "pt_data_", 8) && begins_with(last, "pin\0", 4);
}

/* A slot with a new name in `comm`. */
INLINE void note_name(struct task_slot *slot)
{
	if (is_pin_thread(slot->comm)) {
		slot->scratch.notes |= NOTE_PIN;
		__sync_fetch_and_or(&slot->flags, FLAG_WATCHED);
	}
}

INLINE void fill_task_new(struct task_new *record, const struct task_slot *slot, u32 kind, u64 now)
{
	fill_header(&record->header, slot, kind, sizeof(*record), now);
	record->ppid = slot->ppid;
	record->flags = slot->flags;
	record->start_boottime_ns = slot->start_boottime_ns;
	__builtin_memcpy(record->comm, slot->comm, sizeof(record->comm));
}

INLINE void send_task_new(struct task_new *record, const struct task_slot *slot, u32 kind, u64 now)
{
	if (!record)
		return;
	fill_task_new(record, slot, kind, now);
	submit(record);
}

/* In a namespace of their own users have all rights, as root has in the first. */
INLINE bool has_all_rights(u32 user, struct user_namespace *namespace)
{
	return namespace && namespace->owner.val == user;
}

/*
 * Whether the kernel keeps `user` from looking into the memory of their own task: it executes a program that is set-uid,
 * set-gid, has capabilities or may not be read, or was forked by one; or asked for it. Where the kernel no longer says so in
 * this place, capabilities are what is known of what was executed before.
 */
INLINE bool is_closed_to(u32 user, struct task_struct *task)
{
	struct mm_struct *mm = task->mm;
	struct mm_struct___bitmap *bitmap = (void *)mm;
	u64 flags = DUMPABLE_BY_USER;

	if (!mm)
		return false;
	if (HAS_FIELD(mm->flags))
		READ(flags, mm->flags);
	else if (HAS_FIELD(bitmap->flags))
		READ(flags, bitmap->flags);
	return (flags & DUMPABLE_MASK) != DUMPABLE_BY_USER && !has_all_rights(user, mm->user_ns);
}

/*
 * Whether a task has, or may take again, rights that `user`, whose it is, lacks: as ptrace asks, but for capabilities that a
 * session passes on to all of its programs (ambient ones: systemd has CAP_WAKE_ALARM for users, say).
 */
INLINE bool has_others_rights(u32 user, struct task_struct *task)
{
	const struct cred *cred = task->real_cred;
	u32 gid = cred->egid.val;
	u64 permitted = 0, ambient = 0;

	if (cred->uid.val != user || cred->suid.val != user || cred->gid.val != gid || cred->sgid.val != gid)
		return true;
	READ(permitted, cred->cap_permitted);
	READ(ambient, cred->cap_ambient);
	if (permitted & (~ambient | CAPS_OF_OTHERS) && !has_all_rights(user, cred->user_ns))
		return true;
	return is_closed_to(user, task);
}

/* Whose task it is, and whether they may know what it does. */
INLINE void note_owner(struct task_slot *slot, struct task_struct *task)
{
	slot->uid = task->real_cred->euid.val;
	if (has_others_rights(slot->uid, task))
		__sync_fetch_and_or(&slot->flags, FLAG_PRIVILEGED);
}

/* The leader of this slot's thread group, for scratch.leader. */
INLINE u32 leader_slot(struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct slot_ref *ref = task_storage_get(&slot_of, leader, NULL, 0);

	return ref ? ref->index + 1 : 0;
}

/*
 * Charges `user` for a slot, or counts why not: a user may have as many as are still free. So one who has a thread
 * bomb gets half of all, and users who come later find some. Two CPUs at once may exceed that by one each.
 * Root is not limited: the user who runs the collector may give their own jobs all slots.
 */
INLINE bool charge(u32 user, bool counted)
{
	u32 everybody = USER_EVERYBODY;
	struct user_slots *own = map_lookup_elem(&users, &user), *all = map_lookup_elem(&users, &everybody);

	if (!own || !all)
		return false;
	if (user != USER_ROOT &&
	    (s64)(own->taken - own->returned + all->taken - all->returned) >= (s64)max_tasks) {
		if (!counted) {
			__sync_fetch_and_add(&own->refused, 1);
			count_lost(LOST_USER_SLOTS);
		}
		return false;
	}
	__sync_fetch_and_add(&own->taken, 1);
	__sync_fetch_and_add(&all->taken, 1);
	return true;
}

INLINE void uncharge(u32 user)
{
	u32 everybody = USER_EVERYBODY;
	struct user_slots *own = map_lookup_elem(&users, &user), *all = map_lookup_elem(&users, &everybody);

	if (!own || !all)
		return;
	__sync_fetch_and_add(&own->taken, -1);
	__sync_fetch_and_add(&all->taken, -1);
}

/*
 * Begins the account of `task`. Its slot is complete before its number goes into task storage, which makes it
 * visible to sched_switch; so `state` may be out of date by one switch (see get_cpu).
 *
 * The fork hook and the iterator may both come upon a child: the one that finds the other's number in task
 * storage puts its own slot back.
 */
static __attribute__((noinline)) struct task_slot *track(struct task_struct *task, const struct seed *of, u32 leader,
							 u32 state, u32 flags)
{
	u32 root = of->root, user = of->user;
	u64 now = ktime_get_ns();
	struct task_slot *slot;
	struct slot_ref ref, *stored;

	if (!charge(user, of->counted))
		return NULL;
	if (map_pop_elem(&free_slots, &ref.index)) {
		if (!of->counted)
			count_lost(LOST_NO_SLOT);
		uncharge(user);
		return NULL;
	}
	slot = map_lookup_elem(&slots, &ref.index);
	if (!slot)
		return NULL;

	begin_write(slot);
	slot->tid = task->pid;
	slot->tgid = task->tgid;
	slot->ppid = task->real_parent->tgid;
	ref.generation = ++slot->generation;
	if (slot->tid == slot->tgid)
		flags |= FLAG_WATCHED | FLAG_LEADER;
	slot->flags = flags;
	slot->user = user;
	note_owner(slot, task);
	slot->state = state;
	slot->blocked_in = state == STATE_BLOCKED ? kind_of_sleep(task, false) : 0;
	slot->since_ns = now;
	slot->first_seen_ns = now;
	slot->slice_start_ns = now;
	slot->start_boottime_ns = task->start_boottime;
	__builtin_memset(&slot->total, 0, sizeof(slot->total));
	__builtin_memset(&slot->sent, 0, sizeof(slot->sent));
	slot->sibling_cpu_ns = 0;
	slot->sibling_runnable_ns = 0;
	slot->sent_sibling_cpu_ns = 0;
	slot->sent_sibling_runnable_ns = 0;
	__builtin_memset(&slot->scratch, 0, sizeof(slot->scratch));
	/* It may be watched from later on. */
	slot->rchar = slot->scratch.sent_rchar = task->ioac.rchar;
	slot->read_bytes = slot->scratch.sent_read_bytes = task->ioac.read_bytes;
	note_counts(slot, task);
	slot->scratch.run_start_ns = now;
	slot->scratch.index = ref.index;
	slot->scratch.root = root;
	slot->scratch.leader = leader;
	probe_read_kernel(slot->comm, sizeof(slot->comm), task->comm);
	note_name(slot);
	end_write(slot);

	stored = task_storage_get(&slot_of, task, &ref, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (stored && stored->index == ref.index)
		return slot;
	if (!stored)
		count_lost(LOST_NO_STORAGE);
	slot->state = STATE_FREE;
	map_push_elem(&free_slots, &ref.index, 0);
	uncharge(user);
	return NULL;
}

#endif
