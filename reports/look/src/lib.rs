//! How causes, knobs and foreign names look: the same in terminal, text and page.

mod agreement;
pub mod cache;
mod clean;
mod meaning;
pub mod palette;
pub mod tuning;

pub use agreement::agreement;
pub use clean::{clean, clean_json};
pub use meaning::{meaning, steps_from_outside};
