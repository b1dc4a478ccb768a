//! Reports of a recording or a running job: one file a format.

pub mod advice;
pub mod audit;
pub mod csv;
pub mod diff;
mod error;
mod file;
mod folder;
pub mod html;
pub mod json;
pub mod knobs;
pub mod list;
pub mod markdown;
mod merge;
pub mod node;
pub mod openmetrics;
pub mod otlp;
pub mod parquet;
pub mod perfetto;
pub mod progress;
mod redact;
mod run;
mod sections;
mod style;
pub mod tables;
pub mod target;
pub mod text;
mod tuning;

pub use error::Error;
pub use file::write_whole;
pub use folder::Folder;
pub use run::{Run, Source, StepWalls};
pub use stallscope_look::{clean, clean_json, palette};
pub use style::Style;
