//! What `pack` and `pack append` are given to pack.

use anyhow::{Result, bail};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stallscope_pack::{Columns, Origin, is_tables};
use std::path::PathBuf;

/// What SRC is.
#[derive(Debug, Args)]
pub(crate) struct Kind {
    /// Put the files of each tar file into a folder that is called as it is
    #[arg(long)]
    by_shard: bool,
    /// Column of Parquet and Arrow files whose values become files, as `image` or `text`; by default the one of bytes or text
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// Column of Parquet and Arrow files that has the labels; by default the one of classes (ClassLabel), or `label`
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Pack the Parquet and Arrow files of a folder as they are, not their rows
    #[arg(long, conflicts_with_all = ["column", "label"])]
    as_files: bool,
}

/// One folder, tar files, or tables.
pub(crate) fn origin<'a>(paths: &'a [PathBuf], kind: &'a Kind) -> Result<Origin<'a>> {
    let Kind { by_shard, column, label, as_files } = kind;
    let shown = paths.first().map_or_else(String::new, |path| path.display().to_string());
    stays_open(paths);
    if !as_files && is_tables(paths) {
        if *by_shard {
            bail!(
                "--by-shard is for tar files, and {shown} is none; rows of tables have a folder for each file anyhow"
            );
        }
        let columns = Columns { record: column.as_deref(), label: label.as_deref() };
        return Ok(Origin::Tables { paths, columns });
    }
    if column.is_some() || label.is_some() {
        bail!(
            "--column and --label are for Parquet and Arrow files, or a folder of such alone, and {shown} is none"
        );
    }
    match paths {
        [] => bail!("name what is to be packed"),
        [folder] if !folder.is_file() => match by_shard {
            true => bail!("--by-shard is for tar files, and {shown} is none"),
            false => Ok(Origin::Folder(folder)),
        },
        _ if *as_files => bail!("--as-files is for a folder, and {shown} is none"),
        paths => Ok(Origin::Shards { paths, by_shard: *by_shard }),
    }
}

/// Each file that is named stays open, and a folder of tables has as many: as many as there may be.
fn stays_open(paths: &[PathBuf]) {
    let limit = getrlimit(Resource::Nofile);
    if !matches!(paths, [one] if one.is_file()) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
