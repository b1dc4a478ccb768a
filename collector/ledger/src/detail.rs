//! One step in full: what its tasks did meanwhile, and its causes in the order of time.
//!
//! The causes come from the same rules as the step's ledger. A rule looks at an interval of one kind (a call, the making
//! of the awaited batch, …) as a whole; here that interval is cut into cells where the task that held it up changed
//! what it was doing, and the rule's figures for the cells are brought to the sum that it gave for the whole. Within
//! a cell, which is a mixture that nobody can order, the cause that was under way goes on first and the others follow
//! in the order of [`Cause::ALL`].

use crate::attribute::{Attributed, Stage, Trainer, View, Wait, own_parts, own_rule, wait_parts, wait_rule};
use crate::timeline::Activity;
use stallscope_abi::kernel::Blocked;
use stallscope_model::{Cause, Causes, CriticalPiece, Doing, Segment, StepLane};

const MINUTE_NS: u64 = 60_000_000_000;
/// Cells and segments that a detail keeps; where there are more, neighbours are joined.
const MAX_CELLS: usize = 128;
const MAX_SEGMENTS: usize = 128;

/// Which steps of a rank are worth their detail: the slowest three of each minute, as far as known when they close.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    minute: u64,
    walls_ns: [u64; 3],
}

impl Slowest {
    pub(crate) fn takes(&mut self, start_ns: u64, end_ns: u64) -> bool {
        let minute = end_ns / MINUTE_NS;
        if minute != self.minute {
            *self = Slowest { minute, walls_ns: [0; 3] };
        }
        let wall_ns = end_ns - start_ns;
        match self.walls_ns.iter_mut().min() {
            Some(least) if wall_ns > *least => {
                *least = wall_ns;
                true
            }
            _ => false,
        }
    }
}

/// Whose lane it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Trainer,
    Worker,
}

/// The trainer's lane comes first.
const TRAINER: usize = 0;
const PRODUCER: usize = 1;

/// The causes of a step's time in order, without gaps; the sum of each is that of the step's ledger.
pub(crate) fn critical(
    trainer: &Trainer<'_>,
    wait: Option<&Wait<'_>>,
    start_ns: u64,
    enter_ns: u64,
) -> Vec<CriticalPiece> {
    let mut cells = Vec::new();
    own_parts(trainer, start_ns, enter_ns, |call, from, to| {
        let rule = |a, b, out: &mut Attributed| own_rule(trainer, call, a, b, out);
        cells.extend(cut(Some(&trainer.view), TRAINER, from, to, rule));
    });
    if let Some(wait) = wait {
        wait_parts(wait, |stage, from, to| {
            let own = wait.in_process || wait.producer.is_none() || stage == Stage::Ready;
            let lane = if own { TRAINER } else { PRODUCER };
            let rule = |a, b, out: &mut Attributed| wait_rule(wait, stage, a, b, out);
            cells.extend(cut(wait.producer.as_ref(), lane, from, to, rule));
        });
    }
    pieces(&halve_to(MAX_CELLS, cells, Cell::join))
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    start_ns: u64,
    end_ns: u64,
    /// Adds up to its length.
    causes: Causes,
    lane: usize,
}

impl Cell {
    fn join(&mut self, next: &Cell) -> bool {
        let same = self.lane == next.lane;
        if same {
            self.end_ns = next.end_ns;
            self.causes += &next.causes;
        }
        same
    }
}

/// `[a_ns, b_ns)`, which has one rule, in cells.
fn cut(
    view: Option<&View<'_>>,
    lane: usize,
    a_ns: u64,
    b_ns: u64,
    rule: impl Fn(u64, u64, &mut Attributed),
) -> Vec<Cell> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    match view {
        Some(view) => view.each(a_ns, b_ns, |from, to, _| spans.push((from, to))),
        None => spans.push((a_ns, b_ns)),
    }
    let spans = halve_to(MAX_CELLS, spans, |span, next| {
        span.1 = next.1;
        true
    });
    let cell = |start_ns: u64, end_ns: u64| {
        let mut given = Attributed::default();
        rule(start_ns, end_ns, &mut given);
        Cell { start_ns, end_ns, causes: given.causes, lane }
    };
    let whole = cell(a_ns, b_ns);
    if spans.len() < 2 {
        return vec![whole];
    }
    let mut cells: Vec<Cell> = spans.into_iter().map(|(from, to)| cell(from, to)).collect();
    settle(&mut cells, &whole.causes);
    cells
}

/// Brings the sums over `cells` to `whole`: of a cause that has too much, time goes to those that have too little,
/// first in the cells that have both.
fn settle(cells: &mut [Cell], whole: &Causes) {
    let mut sum = Causes::default();
    cells.iter().for_each(|cell| sum += &cell.causes);
    for anywhere in [false, true] {
        for cell in cells.iter_mut() {
            if sum == *whole {
                return;
            }
            for from in Cause::ALL {
                for to in Cause::ALL {
                    let surplus_ns = sum[from].saturating_sub(whole[from]).min(cell.causes[from]);
                    let moved_ns = surplus_ns.min(whole[to].saturating_sub(sum[to]));
                    if moved_ns > 0 && (anywhere || cell.causes[to] > 0) {
                        for causes in [&mut sum, &mut cell.causes] {
                            causes[from] -= moved_ns;
                            causes[to] += moved_ns;
                        }
                    }
                }
            }
        }
    }
}

fn pieces(cells: &[Cell]) -> Vec<CriticalPiece> {
    let mut pieces: Vec<CriticalPiece> = Vec::with_capacity(2 * cells.len());
    for cell in cells {
        let under_way = pieces.last().filter(|last| last.lane == cell.lane).map(|last| last.cause);
        let others = Cause::ALL.into_iter().filter(|cause| Some(*cause) != under_way);
        let mut at_ns = cell.start_ns;
        for cause in under_way.into_iter().chain(others).filter(|cause| cell.causes[*cause] > 0) {
            let end_ns = at_ns + cell.causes[cause];
            match pieces.last_mut() {
                Some(last) if last.cause == cause && last.lane == cell.lane => last.end_ns = end_ns,
                _ => pieces.push(CriticalPiece { start_ns: at_ns, end_ns, cause, lane: cell.lane }),
            }
            at_ns = end_ns;
        }
    }
    pieces
}

/// What a task did in `[a_ns, b_ns)`, as far as it is known.
pub(crate) fn lane(view: &View<'_>, pid: u32, role: Role, a_ns: u64, b_ns: u64) -> StepLane {
    let mut spans: Vec<(u64, u64, Option<Activity>)> = Vec::new();
    view.each(a_ns, b_ns, |from, to, activity| spans.push((from, to, activity.copied())));
    let spans = halve_to(MAX_SEGMENTS, spans, |span, next| {
        span.1 = next.1;
        match (&mut span.2, &next.2) {
            (Some(activity), Some(more)) => activity.add(more),
            (None, Some(more)) => span.2 = Some(*more),
            (_, None) => {}
        }
        true
    });
    let mut segments: Vec<Segment> = Vec::new();
    for (start_ns, end_ns, activity) in spans {
        let Some(doing) = activity.as_ref().map(|activity| mostly(activity, role)) else { continue };
        match segments.last_mut() {
            Some(last) if last.doing == doing && last.end_ns == start_ns => last.end_ns = end_ns,
            _ => segments.push(Segment { start_ns, end_ns, doing }),
        }
    }
    let role = match role {
        Role::Trainer => "trainer",
        Role::Worker => "worker",
    };
    StepLane { pid, role: role.to_owned(), segments }
}

fn mostly(activity: &Activity, role: Role) -> Doing {
    let mut times = [0u64; Doing::ALL.len()];
    times[Doing::Computing as usize] = activity.times.cpu_ns;
    times[Doing::Runnable as usize] = activity.times.runnable_ns;
    for kind in Blocked::ALL {
        times[blocked_in(kind, role) as usize] += activity.of(kind);
    }
    let mut most = Doing::Computing;
    for doing in Doing::ALL {
        if times[doing as usize] > times[most as usize] {
            most = doing;
        }
    }
    most
}

fn blocked_in(kind: Blocked, role: Role) -> Doing {
    match kind {
        // A worker's thread hands tensors over that way; a worker asks a cache.
        Blocked::Unix if role == Role::Trainer => Doing::Waiting,
        // The thread that it waits for has read.
        Blocked::FileRead | Blocked::Fault | Blocked::FutexRead => Doing::Reading,
        Blocked::FileWrite | Blocked::Sync | Blocked::Rename => Doing::Writing,
        Blocked::Net | Blocked::FutexNet | Blocked::Unix => Doing::Network,
        Blocked::Pipe | Blocked::Futex | Blocked::Poll | Blocked::Child => Doing::Waiting,
        Blocked::Sleep | Blocked::Other => Doing::Other,
    }
}

/// Joins neighbours until there are no more than `most`, or none that `join` takes.
fn halve_to<T>(most: usize, mut items: Vec<T>, join: impl Fn(&mut T, &T) -> bool) -> Vec<T> {
    while items.len() > most {
        let before = items.len();
        let mut halved: Vec<T> = Vec::with_capacity(before / 2 + 2);
        let mut single = false;
        for item in items {
            let joined = single && halved.last_mut().is_some_and(|last| join(last, &item));
            single = !joined;
            if !joined {
                halved.push(item);
            }
        }
        items = halved;
        if items.len() == before {
            break;
        }
    }
    items
}
