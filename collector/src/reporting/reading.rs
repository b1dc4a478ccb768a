//! What a job reads of late, and from which storage.

use stallscope_wire::Reading;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Reads {
    /// At the last look: when it was, what was read so far, and how long each device was waited for.
    before: Option<(u64, u64, BTreeMap<u32, u64>)>,
    of_late: Option<Reading>,
}

impl Reads {
    /// Between the last two looks; `None`: nothing, or it is not known from where.
    pub(super) fn of_late(&self) -> Option<Reading> {
        self.of_late.filter(|reading| reading.bytes_per_s > 0)
    }

    /// Every few seconds. `read_bytes` and `waits_ns`: so far.
    pub(super) fn look(&mut self, now_ns: u64, read_bytes: u64, waits_ns: BTreeMap<u32, u64>) {
        if let Some((then_ns, bytes, waits)) = &self.before {
            let longer = |(device, ns): (&u32, &u64)| {
                (ns.saturating_sub(waits.get(device).copied().unwrap_or(0)), *device)
            };
            let most = waits_ns.iter().map(longer).filter(|(ns, _)| *ns > 0).max();
            // One that nothing waited for of late has what it reads from where it read before.
            let device = most.map(|(_, device)| device).or(self.of_late.map(|reading| reading.device));
            let seconds = now_ns.saturating_sub(*then_ns).max(1) as f64 / 1e9;
            let bytes_per_s = (read_bytes.saturating_sub(*bytes) as f64 / seconds) as u64;
            self.of_late = device.map(|device| Reading { device, bytes_per_s });
        }
        self.before = Some((now_ns, read_bytes, waits_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_of_the_storage_that_is_waited_for_most_of_late() {
        let mut reads = Reads::default();
        let mut look = |second: u64, bytes, waits: &[(u32, u64)]| {
            reads.look(second * 1_000_000_000, bytes, waits.iter().copied().collect());
            reads.of_late()
        };
        assert_eq!(look(10, 1000, &[(1, 900)]), None);
        // Libraries were read from the first before training began.
        assert_eq!(look(15, 6000, &[(1, 901), (2, 50)]), Some(Reading { device: 2, bytes_per_s: 1000 }));
        assert_eq!(look(20, 8500, &[(1, 901), (2, 50)]), Some(Reading { device: 2, bytes_per_s: 500 }));
        assert_eq!(look(25, 8500, &[(1, 901), (2, 50)]), None, "it reads nothing any more");
        assert_eq!(look(30, 9500, &[(1, 901), (2, 50)]), Some(Reading { device: 2, bytes_per_s: 200 }));
        // Nothing is known of where bytes come from that nobody was seen to wait for.
        let mut reads = Reads::default();
        (1..3).for_each(|at| reads.look(at * 1_000_000_000, at * 1000, BTreeMap::new()));
        assert_eq!(reads.of_late(), None);
    }
}
