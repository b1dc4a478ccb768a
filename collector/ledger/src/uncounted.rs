//! Bytes from storage that counts none of what it delivers, as FUSE does: the kernel's account of the task (`ioac.read_bytes`) stays
//! where it was while reads that sleep return bytes.

use stallscope_abi::kernel::{Blocked, Slice};

/// What is compared is at least as much, over at least as long: what is read ahead is counted before it is returned.
const WINDOW_NS: u64 = 1_000_000_000;
const WINDOW_BYTES: u64 = 2 << 20;
/// Where storage counts, it counts about what reads return.
const HARDLY: u64 = 8;

/// Of one process.
#[derive(Debug, Default)]
pub(crate) struct Uncounted {
    bytes: u64,
    /// Of the window under way: its beginning, what storage counted, and what reads returned while some of them slept.
    began_ns: u64,
    counted: u64,
    returned: u64,
    /// A read has slept, and nothing was returned since.
    awaited: bool,
}

impl Uncounted {
    pub(crate) fn slice(&mut self, slice: &Slice) {
        let is_full =
            self.returned >= WINDOW_BYTES && slice.start_ns >= self.began_ns.saturating_add(WINDOW_NS);
        if is_full {
            self.bytes = self.bytes.saturating_add(self.pending());
            (self.counted, self.returned) = (0, 0);
        }
        if self.returned == 0 {
            self.began_ns = slice.start_ns;
        }
        self.counted = self.counted.saturating_add(slice.read_bytes);
        let slept = slice.times.blocked_ns[Blocked::FileRead as usize] > 0;
        // A long sleep is a slice of its own. What its read returns is known from the next time that the task leaves its CPU, and
        // up to then there may be further slices: it was preempted as it copied the bytes out, or system call hooks cut its
        // reading from what it computed.
        if slept || self.awaited {
            self.returned = self.returned.saturating_add(slice.rchar);
        }
        self.awaited = slept || (self.awaited && slice.rchar == 0);
    }

    /// So far. `is_over`: nothing more is to come.
    pub(crate) fn bytes(&self, is_over: bool) -> u64 {
        self.bytes.saturating_add(if is_over { self.pending() } else { 0 })
    }

    fn pending(&self) -> u64 {
        if self.counted < self.returned / HARDLY { self.returned } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stallscope_abi::kernel::Times;

    const MS: u64 = 1_000_000;

    /// Ten seconds of reads of 50 kB that sleep for a while each, and return in the slice after that.
    fn read(of: &mut Uncounted, slept_ms: u64, counted: impl Fn(u64) -> u64) {
        read_late(of, slept_ms, 0, counted);
    }

    /// The same, with so many slices between the sleep and the one that tells what was returned.
    fn read_late(of: &mut Uncounted, slept_ms: u64, between: u64, counted: impl Fn(u64) -> u64) {
        for nth in 0..1000 {
            let mut times = Times::default();
            times.blocked_ns[Blocked::FileRead as usize] = slept_ms * MS;
            let start_ns = nth * 10 * MS;
            of.slice(&Slice { start_ns, times, read_bytes: counted(nth), ..Slice::default() });
            for _ in 0..between {
                of.slice(&Slice { start_ns: start_ns + 8 * MS, ..Slice::default() });
            }
            of.slice(&Slice { start_ns: start_ns + 8 * MS, rchar: 50_000, ..Slice::default() });
            of.slice(&Slice { start_ns: start_ns + 9 * MS, rchar: 1_000, ..Slice::default() });
        }
    }

    #[test]
    fn what_sleeping_reads_return_stands_for_what_nobody_counts() {
        let mut fuse = Uncounted::default();
        read(&mut fuse, 8, |_| 0);
        assert_eq!(fuse.bytes(true), 50_000_000);
        assert!((44_000_000..50_000_000).contains(&fuse.bytes(false)), "{}", fuse.bytes(false));
        for between in 1..4 {
            let mut late = Uncounted::default();
            read_late(&mut late, 8, between, |_| 0);
            assert_eq!(late.bytes(true), 50_000_000, "{between} slices later, and no other read's bytes");
        }
        let mut cached = Uncounted::default();
        read(&mut cached, 0, |_| 0);
        assert_eq!(cached.bytes(true), 0, "the page cache lets nobody sleep");
    }

    #[test]
    fn nothing_is_added_where_storage_counts() {
        let mut each = Uncounted::default();
        read(&mut each, 8, |_| 50_000);
        assert_eq!(each.bytes(true), 0);
        // Read ahead, 2 MB at a time, so that most reads are counted long before they return.
        let mut ahead = Uncounted::default();
        read(&mut ahead, 8, |nth| if nth % 40 == 0 { 2_000_000 } else { 0 });
        assert_eq!(ahead.bytes(true), 0);
    }
}
