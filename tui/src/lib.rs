//! The terminal dashboard of running jobs and recordings.
//!
//! Data goes one way: a thread reads recordings and sends whole snapshots ([`read`]), keys and snapshots change a
//! state that knows neither terminal nor disk ([`app`]), and free functions draw that state ([`render`]). A running
//! job and a replayed recording are the same to all of them but for where "now" is.

mod app;
mod command;
mod jump;
mod key;
mod read;
mod render;
mod rows;
mod series;
mod snapshot;
mod terminal;
mod text;
mod theme;
mod time;
mod ui;
mod view;

pub use read::Places;
pub use snapshot::Place;
pub use theme::{Colours, Theme};
pub use ui::{Ended, Error, Turn, show};

#[cfg(test)]
mod tests;
