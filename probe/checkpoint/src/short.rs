//! Texts and lists of which none that we write is long. A manifest may be anybody's: what is longer is refused before it is copied.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Of a name or an id in a manifest.
pub(crate) const MOST_TEXT_BYTES: usize = 1000;

pub(crate) fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Short::<MOST_TEXT_BYTES>::deserialize(from).map(|text| text.0)
}

pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Short<MOST_TEXT_BYTES>>::deserialize(from)?.map(|text| text.0))
}

/// As much of a sentence as is read.
pub(crate) fn begin_of(sentence: &str) -> &str {
    &sentence[..sentence.floor_char_boundary(MOST_TEXT_BYTES)]
}

/// A text of at most so many bytes.
pub(crate) struct Short<const MOST: usize>(pub(crate) String);

impl<'de, const MOST: usize> Deserialize<'de> for Short<MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Short<MOST>, D::Error> {
        from.deserialize_str(Text)
    }
}

struct Text<const MOST: usize>;

impl<const MOST: usize> Visitor<'_> for Text<MOST> {
    type Value = Short<MOST>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a text of at most {MOST} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Short<MOST>, E> {
        match text.len() <= MOST {
            true => Ok(Short(text.to_owned())),
            false => Err(E::invalid_length(text.len(), &self)),
        }
    }
}

/// A list of at most so many; two bytes of text may be a number of eight.
pub(crate) fn list<'de, const MOST: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(List::<T, MOST>(PhantomData))
}

struct List<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for List<T, MOST> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of at most {MOST}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(one) = from.next_element()? {
            if list.len() == MOST {
                return Err(A::Error::invalid_length(MOST + 1, &self));
            }
            list.push(one);
        }
        list.shrink_to_fit();
        Ok(list)
    }
}
