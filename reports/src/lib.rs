//! Reports of a recording or a running job: one file a format.

pub mod json;
pub mod list;
pub mod progress;
mod style;
pub mod text;
pub mod units;

pub use style::Style;
