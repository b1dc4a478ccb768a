/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * With system call hooks: which time on the CPU goes into reads of files and of the network. What the page
 * cache serves never blocks, so that sched_switch does not see it.
 *
 * Calls for one sample (open, fstat, lseek, read, close ...) come in a burst; the short gaps between them are
 * reading too. A burst is cut out of the time around it, so that slices tell the two apart.
 */
#ifndef STALLSCOPE_READS_H
#define STALLSCOPE_READS_H

#include "account.h"
#include "classify.h"

INLINE bool may_read(enum deed deed)
{
	return deed == DEED_FD_READ || deed == DEED_PATH || deed == DEED_PATH_AT || deed == DEED_OPEN ||
	       deed == DEED_OPEN_AT || deed == DEED_FILE_READ;
}

INLINE void enter_read(struct task_slot *slot, u64 now)
{
	u8 reading = slot->scratch.reading;

	if (!(reading & READING_BURST) || now - slot->scratch.read_end_ns >= BURST_GAP_NS) {
		begin_write(slot);
		book_running(slot, now);
		end_write(slot);
	}
	slot->scratch.reading = READING_BURST | READING_NOW;
}

INLINE void leave_read(struct task_slot *slot, u64 now)
{
	if (slot->scratch.reading & READING_NOW) {
		slot->scratch.read_end_ns = now;
		slot->scratch.reading = READING_BURST;
	}
}

INLINE void send_batch_read(struct task_slot *slot, u64 now)
{
	struct batch_read *record = reserve(slot, sizeof(*record));

	if (!record)
		return;
	fill_header(&record->header, slot, KIND_BATCH_READ, sizeof(*record), now);
	record->fd = slot->scratch.header_fd - 1;
	record->pad = 0;
	submit(record);
}

#endif
