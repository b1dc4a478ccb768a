//! More processes that read ahead, where training waits for samples that come too late or not at all.
//!
//! Only where the script has some: they run its own code. What they do shows as soon as the batches under way are taken, so that
//! they are tried, proven and given back as workers are.

use super::seed::{FETCHERS, Kind, Need, Proposal, STALL, slowest, turned};
use super::useless::reads_of;
use crate::draws::Draws;
use crate::ranks::{Job, Rank};
use stallscope_model::{CacheUses, Estimate};
use stallscope_units::percent_in_words;

/// Of the draws: as many that come too late or not at all are worth reading ahead, and as many have to be read ahead by those that
/// there are, or more of them would not be used either.
const UNREAD: f64 = 0.05;
const USED: f64 = 0.01;
const ALPHA: f64 = 0.025;

/// Twice as many for the slowest ranks, each at most `limit` more.
pub(super) fn more(
    job: &Job,
    draws: &Draws,
    since_ns: u64,
    needs: &[Need],
    limit: impl Fn(u64) -> u64,
) -> Option<Proposal> {
    let uses = draws.recent()?;
    let (missed, late) = (uses.share(uses.misses)?, uses.share(uses.late)?);
    if missed + late < UNREAD || uses.share(uses.prefetched)? < USED {
        return None;
    }
    let (mut moves, mut predicted) = (Vec::new(), Estimate::default());
    for need in slowest(needs) {
        let reads = need.sums.share(need.sums.fetch_ns);
        let Some(rank) = job.ranks.get(&need.rank).filter(|_| reads > STALL) else { continue };
        let Some(now) = rank.knob(FETCHERS).filter(|knob| knob.initial > 0 && knob.value > 0) else {
            continue;
        };
        let (now, to) = (now.value, now.value.saturating_add(limit(now.value)));
        let Some(more) = turned(rank, FETCHERS, to).filter(|turned| turned.to > turned.from) else {
            continue;
        };
        let times = more.to as f64 / now as f64;
        let most = 1.0 / (1.0 - reads).max(0.02) - 1.0;
        let value = gain(rank, since_ns, need, &uses, times).map_or(most / 4.0, |gain| gain.clamp(0.0, most));
        if moves.is_empty() || value > predicted.value {
            predicted = Estimate { value, low: 0.0, high: most };
        }
        moves.push(more);
    }
    (!moves.is_empty()).then(|| Proposal {
        kind: Kind::Raise,
        knob: FETCHERS,
        moves,
        predicted,
        shortfall: predicted.value,
        clear: false,
        why: format!(
            "of the samples {} are read by a worker and {} come late, although {} are read ahead",
            percent_in_words(missed),
            percent_in_words(late),
            percent_in_words(uses.share(uses.prefetched).unwrap_or(0.0))
        ),
    })
}

/// By the law, were so many times as many samples read ahead as now.
fn gain(rank: &Rank, since_ns: u64, need: &Need, uses: &CacheUses, times: f64) -> Option<f64> {
    let still = uses.misses as f64 - uses.prefetched as f64 * (times - 1.0);
    let share = still.max(0.0) / (uses.misses as f64).max(1.0);
    let reads = reads_of(rank, since_ns)?;
    let longer = reads.longer(reads.reads * share, None, ALPHA)?;
    Some(need.step_ns(0.0) / need.step_ns(longer.value).max(1.0) - 1.0)
}
