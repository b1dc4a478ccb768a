//! Uses that were recorded: which sample, how large, how important, epoch by epoch.

use std::collections::HashMap;
use std::io::{BufRead, Read, Write};

/// One recorded use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceUse {
    pub epoch: u32,
    pub id: u32,
    pub bytes: u32,
    /// Its importance once it was trained on.
    pub score: f32,
}

/// Uses in order; epochs never go back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub uses: Vec<TraceUse>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the trace cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {line} of the trace is not `epoch,id,bytes,score`: {reason}")]
    Line { line: usize, reason: &'static str },
    #[error("the trace has more than {0} uses, more than a loader records")]
    Long(usize),
    #[error("the trace has no uses")]
    Empty,
}

const HEADER: &str = "epoch,id,bytes,score";
/// All are in memory together. Loaders record 50 million, and the rest of a batch.
const MOST_USES: usize = 51_000_000;
/// Four numbers take far fewer. A file may be one line without an end.
const LINE_BYTES: u64 = 1024;

impl Trace {
    /// Reads `epoch,id,bytes,score` lines below a header of these names.
    ///
    /// # Errors
    /// A line is something else, goes back to an earlier epoch, there is none, or there are more than a loader records.
    pub fn read(from: impl BufRead) -> Result<Trace, Error> {
        Trace::read_at_most(MOST_USES, from)
    }

    fn read_at_most(most: usize, mut from: impl BufRead) -> Result<Trace, Error> {
        let mut uses: Vec<TraceUse> = Vec::new();
        let mut line = String::new();
        for number in 0.. {
            line.clear();
            if Read::take(&mut from, LINE_BYTES).read_line(&mut line)? == 0 {
                break;
            }
            let wrong = |reason| Error::Line { line: number + 1, reason };
            if line.len() as u64 == LINE_BYTES {
                return Err(wrong("it is longer than any line of a trace"));
            }
            if number == 0 {
                if line.trim() != HEADER {
                    return Err(wrong("the first line names the columns"));
                }
                continue;
            }
            if line.trim().is_empty() {
                continue;
            }
            let mut fields = line.trim().split(',');
            let mut field = || fields.next().ok_or(wrong("a column is missing"));
            let (epoch, id, bytes, score) = (field()?, field()?, field()?, field()?);
            let number = |text: &str, reason| text.parse::<u32>().map_err(|_| wrong(reason));
            let used = TraceUse {
                epoch: number(epoch, "epoch is no whole number")?,
                id: number(id, "id is no whole number below 2^32")?,
                bytes: number(bytes, "bytes is no whole number below 2^32")?,
                score: score.parse().map_err(|_| wrong("score is no number"))?,
            };
            if fields.next().is_some() {
                return Err(wrong("it has a fifth column"));
            }
            if uses.last().is_some_and(|last| last.epoch > used.epoch) {
                return Err(wrong("its epoch is before that of the line above"));
            }
            if uses.len() == most {
                return Err(Error::Long(most));
            }
            uses.push(used);
        }
        if uses.is_empty() { Err(Error::Empty) } else { Ok(Trace { uses }) }
    }

    /// Writes what [`Trace::read`] reads.
    ///
    /// # Errors
    /// `to` does not take it.
    pub fn write(&self, mut to: impl Write) -> std::io::Result<()> {
        writeln!(to, "{HEADER}")?;
        for used in &self.uses {
            writeln!(to, "{},{},{},{}", used.epoch, used.id, used.bytes, used.score)?;
        }
        to.flush()
    }

    /// Different samples in it.
    pub fn samples(&self) -> u64 {
        self.sizes().len() as u64
    }

    /// Bytes of all samples in it, each once.
    pub fn dataset_bytes(&self) -> u64 {
        self.sizes().into_values().map(u64::from).sum()
    }

    fn sizes(&self) -> HashMap<u32, u32> {
        let mut sizes = HashMap::new();
        for used in &self.uses {
            let size: &mut u32 = sizes.entry(used.id).or_default();
            *size = used.bytes.max(*size);
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_trace_is_named_by_its_line() {
        for (text, expected) in [
            ("", "no uses"),
            ("a,b\n", "line 1"),
            ("epoch,id,bytes,score\n", "no uses"),
            ("epoch,id,bytes,score\n0,1,10\n", "line 2"),
            ("epoch,id,bytes,score\n0,1,10,1\n0,-1,10,1\n", "line 3"),
            ("epoch,id,bytes,score\n1,1,10,1\n0,1,10,1\n", "epoch is before"),
            ("epoch,id,bytes,score\n0,1,10,1,7\n", "fifth"),
        ] {
            let error = Trace::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn uses_without_end_are_not_kept() {
        let text = "epoch,id,bytes,score\n0,1,10,1\n0,1,10,1\n\n";
        assert_eq!(Trace::read_at_most(2, text.as_bytes()).unwrap().uses.len(), 2);
        let error = Trace::read_at_most(1, text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than 1 uses"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_not_read_to_its_end() {
        let endless =
            std::io::BufReader::new(HEADER.as_bytes().chain(&b"\n"[..]).chain(std::io::repeat(b'1')));
        let error = Trace::read(endless).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("longer"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_trace_or_an_error(bytes: Vec<u8>) {
            let _ = Trace::read(&bytes[..]);
        }

        #[test]
        fn a_trace_survives_the_file(uses in prop::collection::vec((0u32..5, any::<u32>(), any::<u32>(), 0f32..9.0), 1..50)) {
            let mut epoch = 0;
            let uses = uses.into_iter().map(|(step, id, bytes, score)| {
                epoch += step;
                TraceUse { epoch, id, bytes, score }
            });
            let trace = Trace { uses: uses.collect() };
            let mut file = Vec::new();
            trace.write(&mut file).unwrap();
            prop_assert_eq!(Trace::read(&file[..]).unwrap(), trace);
        }
    }
}
