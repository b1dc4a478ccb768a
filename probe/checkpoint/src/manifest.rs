//! What a checkpoint consists of, as its two kinds of JSON files say: a part a rank, and one manifest that commits all.

use crate::error::{Doing, Error, Result};
use crate::files::Folder;
use crate::image::BLOCK;
use crate::measured;
use crate::retain::Retain;
use crate::short::{self, Short};
use crate::tensor::{Dtype, TensorSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Version of the format on disk. Readers refuse later ones.
pub const FORMAT: u32 = 1;
/// The file whose presence makes a folder a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Largest part of a rank that is read.
pub(crate) const MOST_PART_BYTES: u64 = 256 << 20;
/// Largest manifest that is read: of as many ranks as there can be, with 67 bytes for each, and as many metrics.
pub(crate) const MOST_MANIFEST_BYTES: u64 = 40 << 20;
/// Of it at a time.
const PIECE: u64 = 64 << 10;
/// Largest user state, in bytes.
pub(crate) const MOST_USER_BYTES: u64 = 1 << 30;
const MOST_RANKS: usize = 1 << 19;
/// Tensors of a rank: some four for each parameter that it trains.
pub(crate) const MOST_TENSORS: usize = 1 << 19;
/// Of a tensor: torch and numpy have no more.
const MOST_DIMENSIONS: usize = 64;

/// A BLAKE3 hash, in hexadecimal digits on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub(crate) blake3::Hash);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Digest {
        Digest(blake3::hash(bytes))
    }

    /// 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.to_hex().to_string()
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let hex = Short::<64>::deserialize(from)?;
        blake3::Hash::from_hex(hex.0).map(Digest).map_err(|_| de::Error::custom("not a BLAKE3 hash"))
    }
}

/// What commits a checkpoint: written last, when every part is durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest<P = Vec<Digest>> {
    /// Of this attempt to save; every part carries the same.
    #[serde(deserialize_with = "short::text")]
    pub save: String,
    /// Step of training.
    pub step: u64,
    /// One more than any other in the folder had when this was saved: the order in which checkpoints were made, whatever
    /// their steps and clocks say.
    pub sequence: u64,
    /// When it was committed, in nanoseconds since 1970.
    pub saved_wall_ns: u64,
    /// What saved it: "stallscope 0.1.0".
    #[serde(deserialize_with = "short::text")]
    pub tool: String,
    /// Hash of each rank's part, by rank. As parts carry the hashes of all chunks, this seals every byte.
    pub parts: P,
    /// Of all ranks' tensors with their headers.
    pub image_bytes: u64,
    /// Of these, written by this save.
    pub written_bytes: u64,
    /// Of these, on disk already and linked.
    pub reused_bytes: u64,
    /// The run that saved it: the same from a start of training through all that resumed it. None in checkpoints
    /// of before runs had names: all of these count as one.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "short::optional")]
    pub run: Option<String>,
    /// What the caller measured of this state, by name; none of them NaN.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "crate::measured")]
    pub metrics: BTreeMap<String, f64>,
    /// What stays of this run besides its newest checkpoints.
    #[serde(default)]
    pub retain: Retain,
}

/// A manifest without the hashes of its parts, of which it has as many as there are ranks: all of a folder's are in memory at once.
pub type Listed = Manifest<Ranks>;

/// How many parts a manifest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks(pub u32);

impl<'de> Deserialize<'de> for Ranks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Ranks, D::Error> {
        struct Counted;
        impl<'de> de::Visitor<'de> for Counted {
            type Value = Ranks;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("hashes of parts")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut parts: A) -> Result<Ranks, A::Error> {
                let mut count = 0;
                while parts.next_element::<Digest>()?.is_some() {
                    count += 1;
                }
                Ok(Ranks(count))
            }
        }
        from.deserialize_seq(Counted)
    }
}

/// What one rank saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The manifest's.
    pub save: String,
    /// Step of training.
    pub step: u64,
    /// Whose part it is.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// Its tensors, in the caller's order.
    #[serde(deserialize_with = "short::list::<MOST_TENSORS, _, _>")]
    pub tensors: Vec<StoredTensor>,
    /// Length of the image: safetensors header and tensors.
    pub image_bytes: u64,
    /// Length of every chunk but the last.
    pub chunk_bytes: u64,
    /// Files that hold chunks. A chunk lies at the same place in its file as in the image; what a file lacks is a hole.
    pub files: Vec<StoredFile>,
    /// In the image's order.
    pub chunks: Vec<Chunk>,
    /// What the caller added.
    pub user: Option<StoredUser>,
    /// Bytes of chunks that this save wrote.
    pub written_bytes: u64,
    /// Bytes of chunks that were on disk already.
    pub reused_bytes: u64,
}

/// A tensor in an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "FlatTensor")]
pub struct StoredTensor {
    /// What it is.
    #[serde(flatten)]
    pub spec: TensorSpec,
    /// Where it begins in the image, in bytes.
    pub offset: u64,
}

/// As it is written. Read as what is flattened, each number of a shape would take 16 times its text.
#[derive(Deserialize)]
struct FlatTensor {
    name: String,
    dtype: Dtype,
    #[serde(deserialize_with = "short::list::<MOST_DIMENSIONS, _, _>")]
    shape: Vec<u64>,
    offset: u64,
}

impl From<FlatTensor> for StoredTensor {
    fn from(FlatTensor { name, dtype, shape, offset }: FlatTensor) -> StoredTensor {
        StoredTensor { spec: TensorSpec { name, dtype, shape }, offset }
    }
}

/// A file of chunks in the folder of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Its name there.
    pub name: String,
    /// Bytes of chunks that were written to it, by whichever save.
    pub stored_bytes: u64,
    /// Whether an earlier checkpoint's file lies here under a second name (a hard link).
    pub linked: bool,
}

/// A piece of an image.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// Index into the part's files.
    pub file: u32,
    /// Castagnoli CRC of its bytes.
    pub crc32c: u32,
    /// BLAKE3 of its bytes.
    pub blake3: Digest,
}

/// The caller's own bytes: random number generators, the loader's position, whatever else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredUser {
    /// Its file in the folder of the checkpoint.
    pub file: String,
    /// Length.
    pub bytes: u64,
    /// Of its bytes.
    pub blake3: Digest,
}

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    format: u32,
    blake3: Digest,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// JSON that carries the hash of its content; with that hash.
pub(crate) fn seal(content: &impl Serialize) -> (Vec<u8>, Digest) {
    let sealed = serde_json::to_string(content).and_then(RawValue::from_string).and_then(|content| {
        let blake3 = Digest::of(content.get().as_bytes());
        let mut bytes = serde_json::to_vec(&Sealed { format: FORMAT, blake3, content: &content })?;
        bytes.push(b'\n');
        Ok((bytes, blake3))
    });
    sealed.expect("strings, numbers and lists are always JSON")
}

/// The content, if it is what was sealed; with its hash. `path` is for messages.
pub(crate) fn unseal<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<(T, Digest)> {
    let damaged = |what: &str| Error::damaged(path, what);
    let Versioned { format } =
        serde_json::from_slice(bytes).map_err(|_| damaged("it is cut short or was written over"))?;
    if format != FORMAT {
        let path = path.display();
        return Err(Error::Refused(format!(
            "{path} has format {format} and this stallscope reads format {FORMAT}; use the version that saved it"
        )));
    }
    let sealed: Sealed<'_> =
        serde_json::from_slice(bytes).map_err(|_| damaged("it is cut short or was written over"))?;
    let found = Digest::of(sealed.content.get().as_bytes());
    if found != sealed.blake3 {
        return Err(damaged("its hash does not fit its content"));
    }
    let content = serde_json::from_str(sealed.content.get()).map_err(|error| {
        // It quotes a text that should be a number.
        let error = error.to_string();
        damaged(&format!("its content is not what this format has: {}", short::begin_of(&error)))
    })?;
    Ok((content, found))
}

pub(crate) fn read_manifest<P: DeserializeOwned>(folder: &Folder) -> Result<(Manifest<P>, Digest)> {
    read_sealed(folder, MANIFEST, MOST_MANIFEST_BYTES)
}

/// `most_bytes`: of its text.
pub(crate) fn read_sealed<T: DeserializeOwned>(
    folder: &Folder,
    name: &str,
    most_bytes: u64,
) -> Result<(T, Digest)> {
    let path = folder.path().join(name);
    let file = folder.open_plain(name, false).doing("open", &path)?;
    unseal(&path, &text_in(file, &path, most_bytes)?)
}

/// As far as it may be text: a file of holes takes no disk, and a folder may have thousands.
fn text_in(from: impl Read, path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    let mut from = from.take(most_bytes + 1);
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        (&mut from).take(PIECE).read_to_end(&mut bytes).doing("read", path)?;
        match &bytes[before..] {
            [] if before as u64 > most_bytes => {
                return Err(Error::damaged(path, "it is larger than any manifest"));
            }
            [] => return Ok(bytes),
            piece if piece.contains(&0) => {
                return Err(Error::damaged(path, "it is cut short or was written over"));
            }
            _ => {}
        }
    }
}

/// The file of a rank's part.
pub(crate) fn part_name(rank: u32) -> String {
    format!("rank-{rank}.json")
}

/// Whether a file of a checkpoint may have this name: one plain component, so that nothing outside can be named.
fn is_plain(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

impl<P> Manifest<P> {
    /// [`Manifest::metrics`] as numbers that JSON has: an infinite one is the largest that there is.
    pub fn written_metrics(&self) -> BTreeMap<&str, f64> {
        self.metrics.iter().map(|(name, value)| (name.as_str(), measured::written(*value))).collect()
    }
}

impl Listed {
    /// How many ranks saved it.
    pub fn world(&self) -> u32 {
        self.parts.0
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let texts = [Some(&self.save), Some(&self.tool), self.run.as_ref()];
        let texts = texts.into_iter().flatten().map(|text| text.len() as u64).sum::<u64>();
        measured::bytes(&self.metrics) + self.retain.bytes() + texts + size_of::<Listed>() as u64
    }
}

impl Manifest {
    /// How many ranks saved it.
    pub fn world(&self) -> u32 {
        self.parts.len() as u32
    }

    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        if self.parts.is_empty() || self.parts.len() > MOST_RANKS {
            return Err(Error::damaged(path, "it names no rank, or more than there can be"));
        }
        Ok(())
    }
}

impl Part {
    /// The part's fields taken together: whatever a file says, what passes here can be read without surprise.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        let damaged = |what: &str| Err(Error::damaged(path, what));
        if !self.chunk_bytes.is_multiple_of(BLOCK) || !(BLOCK..=64 << 20).contains(&self.chunk_bytes) {
            return damaged("its chunks have a size that none has");
        }
        if self.image_bytes > i64::MAX as u64 / 2 {
            return damaged("its image is larger than any memory");
        }
        if self.chunks.len() as u64 != self.image_bytes.div_ceil(self.chunk_bytes) {
            return damaged("the number of its chunks does not fit its size");
        }
        if self.chunks.iter().any(|chunk| chunk.file as usize >= self.files.len()) {
            return damaged("a chunk lies in a file that it does not name");
        }
        let user = self.user.iter().map(|user| &user.file);
        let mut names = HashSet::new();
        if !self
            .files
            .iter()
            .map(|file| &file.name)
            .chain(user)
            .all(|name| is_plain(name) && names.insert(name))
        {
            return damaged("it names a file as none is named");
        }
        if self.user.as_ref().is_some_and(|user| user.bytes > MOST_USER_BYTES) {
            return damaged("its user state is larger than any");
        }
        let mut names = HashSet::new();
        let mut left = self.image_bytes;
        for tensor in &self.tensors {
            let bytes = tensor.spec.bytes().map_err(|error| Error::damaged(path, error.to_string()))?;
            let inside = tensor.offset.checked_add(bytes).is_some_and(|end| end <= self.image_bytes);
            // Together they are no more than the image, so that nothing that is made of them is larger either.
            match left.checked_sub(bytes) {
                Some(rest) if inside && names.insert(&tensor.spec.name) => left = rest,
                _ => return damaged("its tensors do not fit its image"),
            }
        }
        Ok(())
    }

    /// Places of its tensors, by their names.
    pub(crate) fn by_name(&self) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.tensors.len() as u32).collect();
        places.sort_unstable_by_key(|at| &*self.tensors[*at as usize].spec.name);
        places
    }

    /// The numbers of all of its chunks.
    pub(crate) fn every_chunk(&self) -> Vec<usize> {
        (0..self.chunks.len()).collect()
    }

    /// Bytes of that chunk.
    pub(crate) fn chunk_len(&self, chunk: usize) -> u64 {
        let begin = chunk as u64 * self.chunk_bytes;
        self.chunk_bytes.min(self.image_bytes.saturating_sub(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text, and then holes.
    struct Sparse<'a>(&'a mut u64);

    impl Read for Sparse<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            into.fill(if *self.0 == 0 { b' ' } else { 0 });
            *self.0 += into.len() as u64;
            Ok(into.len())
        }
    }

    /// Of 250 MB of holes each, five had taken `ckpt verify` 8 s.
    #[test]
    fn a_file_of_holes_is_not_read_to_its_end() {
        let mut read = 0;
        let found = text_in(Sparse(&mut read), Path::new("manifest.json"), MOST_MANIFEST_BYTES);
        assert!(found.is_err_and(|error| error.to_string().contains("written over")));
        assert!(read <= 2 * PIECE, "{read}");
    }

    #[test]
    fn text_is_read_whole_up_to_a_limit() -> Result<()> {
        let path = Path::new("manifest.json");
        let text = b"{} ".repeat(PIECE as usize);
        assert_eq!(text_in(text.as_slice(), path, text.len() as u64)?, text);
        let endless = text_in(std::io::repeat(b' '), path, MOST_MANIFEST_BYTES);
        assert!(endless.is_err_and(|error| error.to_string().contains("larger")));
        Ok(())
    }
}
