//! Which samples are drawn when, and which of them are kept in memory.
//!
//! [`Draws`] say which sample is used next and with which weight in the loss; a [`Planner`] makes them ahead, so that the
//! next use of a sample is known; a [`Policy`] says what is kept. All of it is a function of its inputs and a seed, and
//! knows neither memory nor clock: the same code is simulated ([`simulate`]) and used live, in the process of the [`pool`].
//! Of samples of low importance, [`packages`] keep more on a disk.

mod draws;
mod ghost;
mod lcache;
#[cfg(not(loom))]
pub mod packages;
mod planner;
mod policy;
pub mod pool;
mod random;
mod simulate;
mod substitute;
mod sweep;
mod trace;

pub use draws::{Draw, DrawKind, Draws, Selection, World};
pub use ghost::{CurvePoint, Ghost, Tracked};
pub use planner::{LateUse, Planned, Planner};
pub use policy::{Policy, PolicyKind, Use};
pub use simulate::{Caching, EpochFigures, Figures, Generated, replay, train};
pub use substitute::Substitutes;
pub use sweep::{Point, Sweep, percent};
pub use trace::{Error, Trace, TraceUse};
