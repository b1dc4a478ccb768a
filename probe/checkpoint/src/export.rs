//! A checkpoint as one plain safetensors file, which anything reads.

use crate::arena::lock;
use crate::checkpoint::{Check, Checkpoint};
use crate::error::{Doing, Error, Result};
use crate::files::write_all;
use crate::image::header;
use crate::manifest::{Part, StoredTensor};
use crate::tensor::short;
use serde_json::{Map, json};
use stallscope_folder::Folder;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;

impl Checkpoint {
    /// Writes the tensors of one rank, or of all, to a new safetensors file; every chunk is verified on the way. The file
    /// appears whole or not at all.
    ///
    /// # Errors
    /// The file is there already; another user's link leads to its folder; damage; two ranks have a tensor of the same name: then
    /// name a rank.
    pub fn export(&self, rank: Option<u32>, to: &Path) -> Result<()> {
        let folder = Folder::around(to).doing("open the folder of", to)?;
        let name = to.file_name().ok_or(io::ErrorKind::InvalidInput).doing("make", to)?;
        if folder.has(name) {
            return Err(Error::Refused(format!("{} is there already; name a new file", to.display())));
        }
        let parts = match rank {
            Some(rank) => std::slice::from_ref(self.part(rank)?),
            None => &self.parts[..],
        };
        let mut entries = Map::new();
        let mut at = 0;
        // By part and tensor: where it begins among the data.
        let mut begins = Vec::new();
        let mut tensors: Vec<_> = parts
            .iter()
            .enumerate()
            .flat_map(|(part, of)| of.tensors.iter().map(move |tensor| (part, tensor)))
            .collect();
        tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.spec.dtype.bytes()));
        for (part, tensor) in tensors {
            let (spec, bytes) = (&tensor.spec, tensor.spec.bytes()?);
            let entry =
                json!({ "dtype": spec.dtype.name(), "shape": spec.shape, "data_offsets": [at, at + bytes] });
            if entries.insert(spec.name.clone(), entry).is_some() {
                let name = short(&spec.name);
                return Err(Error::Refused(format!(
                    "several ranks have a tensor {name:?}; export one rank at a time"
                )));
            }
            begins.push((part, tensor, at));
            at += bytes;
        }
        let head = header(&entries);
        let fresh = format!(".{}.{}", name.to_string_lossy(), std::process::id());
        let fresh = OsStr::new(&fresh);
        let path = folder.path().join(fresh);
        let file = folder.create_new(fresh).doing("make", &path)?;
        let written = self.write_export(&file, &path, &head, &begins, parts);
        let placed = written.and_then(|()| folder.rename_new(fresh, name).doing("rename to", to));
        if placed.is_err() {
            let _ = folder.remove(fresh);
        }
        placed
    }

    fn write_export(
        &self,
        file: &File,
        fresh: &Path,
        head: &[u8],
        begins: &[(usize, &StoredTensor, u64)],
        parts: &[Part],
    ) -> Result<()> {
        let mut end = head.len() as u64;
        for (_, tensor, at) in begins {
            end = end.max(head.len() as u64 + at + tensor.spec.bytes()?);
        }
        file.set_len(end).doing("enlarge", fresh)?;
        write_all(file, head, 0).doing("write", fresh)?;
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        for (nth, part) in parts.iter().enumerate() {
            let mut here: Vec<(u64, u64, u64)> = begins
                .iter()
                .filter(|(in_part, _, _)| *in_part == nth)
                .map(|(_, tensor, at)| Ok((tensor.offset, tensor.offset + tensor.spec.bytes()?, *at)))
                .collect::<Result<_>>()?;
            here.retain(|(begin, end, _)| begin < end);
            here.sort_unstable();
            let chunk_bytes = part.chunk_bytes;
            self.chunks(part, None, Check::Full, false, &part.every_chunk(), &|chunk, bytes| {
                let (from, to) =
                    (chunk as u64 * chunk_bytes, chunk as u64 * chunk_bytes + bytes.len() as u64);
                for (begin, end, at) in &here {
                    let (first, last) = ((*begin).max(from), (*end).min(to));
                    if first >= last {
                        continue;
                    }
                    let piece = &bytes[(first - from) as usize..(last - from) as usize];
                    // What is a hole there, as far as a foreign file says so, is one here, and takes no disk.
                    if piece.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    let place = head.len() as u64 + at + (first - begin);
                    if let Err(error) = write_all(file, piece, place).doing("write", fresh) {
                        lock(&failed).get_or_insert(error);
                    }
                }
            })?;
        }
        match lock(&failed).take() {
            Some(error) => Err(error),
            None => file.sync_all().doing("sync", fresh),
        }
    }
}
