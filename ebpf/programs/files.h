/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which file a task was blocked in, asked when it gets a CPU again: it is then still within the same system call
 * or fault, so that nothing has to be kept while it sleeps. (Another thread may have closed the descriptor
 * meanwhile; then the wait counts without a file, or for the one that has the number now.)
 */
#ifndef STALLSCOPE_FILES_H
#define STALLSCOPE_FILES_H

#include "account.h"
#include "classify.h"

/* A `struct path` of our own. */
struct place {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

INLINE bool is_file_wait(u32 kind)
{
	return kind == BLOCKED_FILE_READ || kind == BLOCKED_FILE_WRITE || kind == BLOCKED_FAULT || kind == BLOCKED_SYNC;
}

/* How many words after `vma` the address is in a `struct vm_fault`. */
INLINE u32 words_to_address(void)
{
	struct vm_fault *fault = NULL;

	return (__builtin_preserve_field_info(fault->address, 0) - __builtin_preserve_field_info(fault->vma, 0)) / 8;
}

INLINE struct file *file_at(struct task_struct *task, struct vm_area_struct *vma, u64 address)
{
	u64 mm = 0, own = 0, start = 0, end = 0;
	struct file *file = NULL;

	READ(mm, vma->vm_mm);
	READ(start, vma->vm_start);
	READ(end, vma->vm_end);
	READ(own, task->mm);
	if (mm != own || address < start || address >= end)
		return NULL;
	READ(file, vma->vm_file);
	return file;
}

/*
 * The file whose page a task faulted on in user space.
 *
 * Nothing names it but the `struct vm_fault` in the frame of __handle_mm_fault, some hundred bytes below the
 * saved registers. It is recognized by its content: a mapping of the task's own, and an address in it, of a page.
 * Only a wait for storage is taken, since before there is such a frame (a wait for the lock of the mappings, say)
 * that of an earlier fault may lie there.
 */
static __attribute__((noinline)) struct file *faulted_file(struct task_struct *task)
{
	u32 zero = 0, ahead = words_to_address();
	struct fault_stack *stack = map_lookup_elem(&fault_stacks, &zero);
	void *registers = task_pt_regs(task);
	struct file *file;
	u64 vma, address;

	if (!stack || ahead >= 8 || !in_iowait(task) ||
	    probe_read_kernel(stack, sizeof(*stack), registers - sizeof(*stack)))
		return NULL;
	for (u32 up = 8; up < FAULT_WORDS; up++) {
		vma = stack->words[FAULT_WORDS - 1 - up];
		address = stack->words[FAULT_WORDS - 1 - up + ahead];
		/* Pointers of the kernel's are negative numbers; an address of user space is none, and not small. */
		if ((s64)vma >= 0 || vma & 7 || (s64)address < 4096 || address & 4095)
			continue;
		file = file_at(task, (void *)vma, address);
		if (file)
			return file;
	}
	return NULL;
}

/* The open file that a system call is about. */
INLINE struct file *called_file(struct task_struct *task, struct pt_regs *regs)
{
	long nr = regs->orig_ax;

	switch (deed_of(nr)) {
	case DEED_FD_READ:
	case DEED_FD_WRITE:
		return file_of(task, regs->di);
	case DEED_SYNC:
		return nr == NR_SYNC || nr == NR_MSYNC ? NULL : file_of(task, regs->di);
	case DEED_FILE_READ:
		return nr == NR_SENDFILE ? file_of(task, regs->si) : NULL;
	default:
		return NULL;
	}
}

/*
 * The path by which a mapped file was opened. Overlay and FUSE map another file than that, and have its path behind
 * it. The flag that says so is another bit in every other kernel, so what lies behind a file is taken for a path
 * only if that leads to one of these two.
 */
INLINE struct path *mapped_path(struct file *file)
{
	enum { EXISTS = 2 };
	struct backing_file *backing = (void *)file;
	struct vfsmount *mnt = NULL;
	struct super_block *sb = NULL;
	unsigned long magic = 0;

	/* Before 6.5 the file itself has the path. */
	if (__builtin_preserve_field_info(backing->user_path, EXISTS)) {
		READ(mnt, backing->user_path.mnt);
		READ(sb, mnt->mnt_sb);
		READ(magic, sb->s_magic);
		if (magic == OVERLAY_MAGIC || magic == FUSE_MAGIC)
			return &backing->user_path;
	}
	return &file->f_path;
}

INLINE void read_place(struct place *place, const struct path *path)
{
	READ(place->mnt, path->mnt);
	READ(place->dentry, path->dentry);
}

/*
 * Whether a place is still one: none of those below is held for us. A dentry that was freed has no holder, and one that
 * was made in its memory since may be another user's; it has another inode, or is of another file system than the mount.
 */
INLINE bool is_whole(const struct place *place, const struct inode *walked)
{
	struct super_block *of_mount = NULL, *of_inode = NULL;
	struct inode *inode = NULL;
	int holders = 0;

	if (!place->mnt || !place->dentry)
		return false;
	READ(holders, place->dentry->d_lockref.count);
	READ(inode, place->dentry->d_inode);
	READ(of_inode, inode->i_sb);
	READ(of_mount, place->mnt->mnt_sb);
	return holders > 0 && of_inode && of_inode == of_mount && (!walked || inode == walked);
}

/* Where the walk along its path has come: the directory in which a name is being looked up, then what is being opened. The walk
 * stays the task's while it gives back what it held, the directory before its links, which may wait as well. */
INLINE bool walked_place(struct nameidata *walk, struct place *place)
{
	struct inode *inode = NULL;

	read_place(place, &walk->path);
	READ(inode, walk->inode);
	return inode && is_whole(place, inode);
}

/* Of the open file that a system call is about. Another thread may close it, and another process open one in its memory: what was
 * read is the task's if its table has that file still. */
INLINE bool called_place(struct task_struct *task, struct pt_regs *regs, struct place *place)
{
	struct file *file = called_file(task, regs);

	if (!file)
		return false;
	read_place(place, &file->f_path);
	return is_whole(place, NULL) && called_file(task, regs) == file;
}

/* What a task waits for; before there is an open file, how far the walk along its path has come. */
INLINE bool find_place(struct task_struct *task, u32 kind, struct place *place)
{
	struct pt_regs *regs = task_pt_regs(task);
	struct nameidata *walk = task->nameidata;
	struct file *file;

	if (regs->orig_ax == (unsigned long)-1) {
		file = faulted_file(task);
		if (!file)
			return false;
		read_place(place, mapped_path(file));
		return is_whole(place, NULL);
	}
	/* On the arguments of a call that is not about a file. */
	if (kind == BLOCKED_FAULT)
		return false;
	return walk ? walked_place(walk, place) : called_place(task, regs, place);
}

INLINE void fill_key(struct file_key *key, const struct place *place)
{
	struct mount *mount = NULL;
	struct super_block *sb = NULL;
	struct inode *inode = NULL;

	mount = (void *)place->mnt - __builtin_preserve_field_info(mount->mnt, 0);
	READ(key->mount, mount->mnt_id);
	READ(sb, place->mnt->mnt_sb);
	READ(key->dev, sb->s_dev);
	READ(inode, place->dentry->d_inode);
	READ(key->inode, inode->i_ino);
}

INLINE void fill_name(u8 *to, u32 size, struct dentry *dentry)
{
	const unsigned char *name = NULL;

	READ(name, dentry->d_name.name);
	probe_read_kernel_str(to, size, name);
}

/* The last two parts of the path, as far as they lie within the mount. */
INLINE void fill_path(struct file_wait *file, const struct place *place)
{
	struct dentry *top = NULL, *parent = NULL, *above = NULL;

	READ(top, place->mnt->mnt_root);
	READ(parent, place->dentry->d_parent);
	file->whole = place->dentry == top || parent == top;
	if (place->dentry != top)
		fill_name(file->name, sizeof(file->name), place->dentry);
	/* Of what has no path (a pipe's memory, an unlinked directory) the parent is itself. */
	if (file->whole || parent == place->dentry)
		return;
	fill_name(file->parent, sizeof(file->parent), parent);
	READ(above, parent->d_parent);
	file->whole = above == top;
}

/* Begins the sum of a mount for `user`, who may have as many as are still free, as of slots: see `charge`. */
INLINE void take_mount(const struct file_key *key, u32 user)
{
	u32 everybody = USER_EVERYBODY;
	struct user_slots *own = map_lookup_elem(&users, &user), *all = map_lookup_elem(&users, &everybody);
	struct mount_wait none = {};

	if (!own || !all)
		return;
	if (user != USER_ROOT && (s64)(own->mounts_taken - own->mounts_returned + all->mounts_taken -
				       all->mounts_returned) >= (s64)max_mounts)
		return;
	if (map_update_elem(&mount_waits, key, &none, BPF_NOEXIST))
		return;
	__sync_fetch_and_add(&own->mounts_taken, 1);
	__sync_fetch_and_add(&all->mounts_taken, 1);
}

INLINE void count_mount_wait(const struct file_key *file, u32 user, u64 wait_ns)
{
	struct file_key key = { .root = file->root, .mount = file->mount, .dev = file->dev, .uid = file->uid };
	struct mount_wait *wait = map_lookup_elem(&mount_waits, &key);

	if (!wait) {
		take_mount(&key, user);
		wait = map_lookup_elem(&mount_waits, &key);
	}
	if (!wait) {
		count_lost(LOST_NO_MOUNT);
		return;
	}
	__sync_fetch_and_add(&wait->wait_ns, wait_ns);
	__sync_fetch_and_add(&wait->waits, 1);
}

/*
 * Begins the sum of a file for `user`, who may have as many as are still free. Root has no more: there is always space
 * for the next user, and user space makes some once a second for those that have their share.
 */
INLINE void take_file(const struct file_key *key, const struct place *place, u32 user)
{
	u32 everybody = USER_EVERYBODY;
	struct user_slots *own = map_lookup_elem(&users, &user), *all = map_lookup_elem(&users, &everybody);
	struct kept_file none = {};

	if (!own || !all ||
	    (s64)(own->files_taken - own->files_returned + all->files_taken - all->files_returned) >= (s64)max_files)
		return;
	fill_path(&none.wait, place);
	if (map_update_elem(&file_waits, key, &none, BPF_NOEXIST))
		return;
	__sync_fetch_and_add(&own->files_taken, 1);
	__sync_fetch_and_add(&all->files_taken, 1);
}

/* Adds a wait of the owner of `slot` in a file that is not known. */
INLINE void count_nameless_wait(struct task_slot *slot, u64 wait_ns)
{
	struct file_key none = { .root = slot->scratch.root, .uid = known_to(slot) };

	count_mount_wait(&none, slot->user, wait_ns);
}

/* Adds a wait of `task`, the owner of `slot`, that ended at `end_ns` to that of its file and mount. */
static __attribute__((noinline)) void count_file_wait(struct task_slot *slot, struct task_struct *task, u32 kind,
						      u64 wait_ns, u64 end_ns)
{
	/* A tree may have tasks of several users; each user may know the waits of their own tasks only. */
	struct file_key key = { .root = slot->scratch.root, .uid = known_to(slot) };
	struct kept_file *file;
	struct place place = {};

	if (!find_place(task, kind, &place)) {
		count_mount_wait(&key, slot->user, wait_ns);
		return;
	}
	fill_key(&key, &place);
	count_mount_wait(&key, slot->user, wait_ns);
	file = map_lookup_elem(&file_waits, &key);
	if (!file) {
		take_file(&key, &place, slot->user);
		file = map_lookup_elem(&file_waits, &key);
	}
	if (!file)
		return;
	__sync_fetch_and_add(&file->wait.wait_ns, wait_ns);
	__sync_fetch_and_add(&file->wait.waits, 1);
	file->wait.tgid = slot->tgid;
	file->last_ns = end_ns;
}

#endif
