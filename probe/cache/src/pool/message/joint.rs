//! What ranks tell of their uses, of which their joint miss-ratio curve is.

use super::{Fields, put32, put64};

/// Who feeds a joint curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The same in all ranks of a job, another one for each of its loaders.
    pub loader: u64,
    /// Of the space.
    pub samples: u64,
    /// Samples that this rank uses in an epoch.
    pub epoch_uses: u64,
    /// Tells jobs apart as far as their ranks know; 0 where they know nothing.
    pub job: u64,
    pub rank: u32,
    /// Of the whole job, on all nodes.
    pub ranks: u32,
}

/// Ids are those of the space, and of samples that stand for all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Joint {
    /// Sent again: uses were lost, and all is to begin anew.
    Join(Member),
    /// So many samples were used, of all; id, place and next place of those that stand for them.
    Used {
        count: u64,
        tracked: Vec<(u32, u64, u64)>,
    },
    Planned(Vec<(u32, u64)>),
    Scored(Vec<(u32, f64)>),
    /// The rank begins its epoch of this number, counted from 1.
    Epoch(u64),
}

impl Joint {
    /// Its kind among requests.
    pub(super) fn put(&self, to: &mut Vec<u8>) -> u8 {
        match self {
            Joint::Join(member) => {
                put64(to, &[member.loader, member.samples, member.epoch_uses, member.job]);
                put32(to, &[member.rank, member.ranks]);
                10
            }
            Joint::Used { count, tracked } => {
                put64(to, &[*count]);
                for (id, at, next_at) in tracked {
                    put32(to, &[*id]);
                    put64(to, &[*at, *next_at]);
                }
                11
            }
            Joint::Planned(planned) => {
                for (id, next_at) in planned {
                    put32(to, &[*id]);
                    put64(to, &[*next_at]);
                }
                12
            }
            Joint::Scored(scored) => {
                for (id, score) in scored {
                    put32(to, &[*id]);
                    put64(to, &[score.to_bits()]);
                }
                13
            }
            Joint::Epoch(number) => {
                put64(to, &[*number]);
                14
            }
        }
    }

    pub(super) fn take(kind: u8, f: &mut Fields<'_>) -> Option<Joint> {
        Some(match kind {
            10 => Joint::Join(Member {
                loader: f.u64()?,
                samples: f.u64()?,
                epoch_uses: f.u64()?,
                job: f.u64()?,
                rank: f.u32()?,
                ranks: f.u32()?,
            }),
            11 => Joint::Used { count: f.u64()?, tracked: f.list(|f| Some((f.u32()?, f.u64()?, f.u64()?)))? },
            12 => Joint::Planned(f.list(|f| Some((f.u32()?, f.u64()?)))?),
            13 => Joint::Scored(f.list(|f| Some((f.u32()?, f64::from_bits(f.u64()?))))?),
            14 => Joint::Epoch(f.u64()?),
            _ => return None,
        })
    }
}
