//! The pictures of a pack, as torchvision's ImageFolder has those of a folder.

use crate::error::{Error, Result};
use crate::names::{class_of, shown};
use crate::pack::Pack;
use crate::snapshot::SNAPSHOT;

/// Which records of a pack are pictures, in the data set's order, and their classes.
#[derive(Debug)]
pub struct Images {
    /// Numbers of records; None where all of them from a first one on are pictures.
    chosen: Option<Vec<u32>>,
    first: usize,
    count: usize,
    classes: Classes,
}

#[derive(Debug)]
enum Classes {
    /// Name, and which picture is its first.
    Folders(Vec<(Vec<u8>, usize)>),
    /// The label of each picture, and how many labels there are.
    Given(Vec<u32>, u32),
}

/// Labels that came with the files are classes up to here: each number below the largest is one, and takes memory, 250 bytes of it in Python. A pack
/// of one picture is not to take gigabytes by its label.
const MOST_CLASSES: u32 = 1 << 24;
const CLASSES_OF_ANY: u32 = 1 << 20;
const CLASSES_EACH_PICTURE: usize = 64;

/// Classes without a picture that a sentence names.
const MOST_NAMED: usize = 10;

/// Takes the classes of a pack's records, one after the other, and knows which are new. Records may name any part of one text, in any
/// order: with a class for each, some megabytes of a snapshot had taken gigabytes.
#[derive(Debug)]
pub struct ClassNames<'a> {
    pack: &'a Pack,
    last: Option<Vec<u8>>,
    left: usize,
}

impl<'a> ClassNames<'a> {
    /// Of this pack.
    pub fn of(pack: &'a Pack) -> ClassNames<'a> {
        ClassNames { pack, last: None, left: pack.snapshot().bytes().len() }
    }

    /// A class, where it is another one than that of the record before.
    ///
    /// # Errors
    /// Records are not in their order, or all classes have more bytes than the snapshot.
    pub fn next(&mut self, class: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.last.as_deref() == Some(class) {
            return Ok(None);
        }
        let wrong = |what: &str| Error::damaged(&self.pack.dir().join(SNAPSHOT), what);
        let class = class.to_vec();
        if self.last.as_ref().is_some_and(|last| *last >= class) {
            return Err(wrong("its records are not in order"));
        }
        let left = self.left.checked_sub(class.len());
        self.left = left.ok_or_else(|| wrong("its records name the same bytes"))?;
        self.last = Some(class.clone());
        Ok(Some(class))
    }
}

impl Images {
    /// Those whose names end in one of these, whatever the case. A class is a topmost folder; what lies in none is no
    /// picture. Where labels came with the files, a class is a label, and what has none is no picture.
    ///
    /// # Errors
    /// There is no picture, a folder without one, or the snapshot is damaged.
    pub fn of(pack: &Pack, extensions: &[Vec<u8>]) -> Result<Images> {
        match pack.snapshot().has_labels() {
            true => Images::by_labels(pack, extensions),
            false => Images::by_folders(pack, extensions),
        }
    }

    fn by_labels(pack: &Pack, extensions: &[Vec<u8>]) -> Result<Images> {
        let snapshot = pack.snapshot();
        let _reads_on = snapshot.read_on();
        let (mut chosen, mut labels) = (Vec::new(), Vec::new());
        for number in 0..snapshot.records() {
            let entry = snapshot.entry(number)?;
            let is_picture = extensions.iter().any(|extension| ends_with(entry.name, extension));
            if let Some(label) = entry.label.filter(|_| is_picture) {
                chosen.push(number as u32);
                labels.push(label);
            }
        }
        let dir = pack.dir().display();
        let Some(most) = labels.iter().max().copied() else {
            return Err(Error::Refused(format!("{dir} has no picture with a label")));
        };
        let of_so_many = labels.len().saturating_mul(CLASSES_EACH_PICTURE).min(MOST_CLASSES as usize) as u32;
        let below = CLASSES_OF_ANY.max(of_so_many);
        if most >= below {
            return Err(Error::Refused(format!(
                "{dir} has the label {most}, and labels of classes of so many pictures are below {below}; read it with PackedDataset"
            )));
        }
        let classes = Classes::Given(labels, most + 1);
        let (first, count) = (0, chosen.len());
        Ok(Images { chosen: Some(chosen), first, count, classes })
    }

    fn by_folders(pack: &Pack, extensions: &[Vec<u8>]) -> Result<Images> {
        let snapshot = pack.snapshot();
        let _reads_on = snapshot.read_on();
        let (mut chosen, mut names) = (Vec::new(), ClassNames::of(pack));
        let mut classes: Vec<(Vec<u8>, usize)> = Vec::new();
        for number in 0..snapshot.records() {
            let name = snapshot.entry(number)?.name;
            let Some(class) = class_of(name) else { continue };
            // The order is by class first.
            if let Some(class) = names.next(class)? {
                classes.push((class, chosen.len()));
            }
            if extensions.iter().any(|extension| ends_with(name, extension)) {
                chosen.push(number as u32);
            }
        }
        let ends = classes.iter().skip(1).map(|(_, first)| *first).chain([chosen.len()]);
        let mut empty = classes.iter().zip(ends).filter(|((_, first), end)| first == end);
        let named: Vec<String> =
            empty.by_ref().take(MOST_NAMED).map(|((class, _), _)| shown(class)).collect();
        let others = empty.count();
        if classes.is_empty() {
            let dir = pack.dir().display();
            return Err(Error::Refused(format!(
                "{dir} has no file in a folder, and so no class of pictures"
            )));
        }
        if !named.is_empty() {
            let (dir, named) = (pack.dir().display(), named.join(", "));
            let more = if others > 0 { format!(" and {others} more") } else { String::new() };
            return Err(Error::Refused(format!("{dir} has no picture of these classes: {named}{more}")));
        }
        let (first, count) = (chosen[0] as usize, chosen.len());
        let is_run = chosen[count - 1] as usize == first + count - 1;
        let chosen = (!is_run).then_some(chosen);
        Ok(Images { chosen, first, count, classes: Classes::Folders(classes) })
    }

    /// How many pictures there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Names of the classes, in the order of their numbers: folders, or labels in digits.
    pub fn classes(&self) -> Vec<Vec<u8>> {
        match &self.classes {
            Classes::Folders(folders) => folders.iter().map(|(name, _)| name.clone()).collect(),
            Classes::Given(_, count) => (0..*count).map(|label| label.to_string().into_bytes()).collect(),
        }
    }

    /// The record of a picture and the number of its class; none behind the last one.
    pub fn at(&self, picture: usize) -> Option<(usize, usize)> {
        if picture >= self.count {
            return None;
        }
        let record = match &self.chosen {
            Some(chosen) => *chosen.get(picture)? as usize,
            None => self.first + picture,
        };
        Some((record, self.class_at(picture)))
    }

    /// The picture of a record; none of a record that is no picture.
    pub fn of_record(&self, record: usize) -> Option<usize> {
        match &self.chosen {
            Some(chosen) => chosen.binary_search(&u32::try_from(record).ok()?).ok(),
            None => record.checked_sub(self.first).filter(|picture| *picture < self.count),
        }
    }

    fn class_at(&self, picture: usize) -> usize {
        match &self.classes {
            Classes::Folders(folders) => folders.partition_point(|(_, first)| *first <= picture) - 1,
            Classes::Given(labels, _) => labels[picture] as usize,
        }
    }
}

fn ends_with(name: &[u8], extension: &[u8]) -> bool {
    let end = name.len().checked_sub(extension.len()).and_then(|at| name.get(at..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(extension))
}
