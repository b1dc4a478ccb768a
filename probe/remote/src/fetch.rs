//! One range of an object: tried again as long as that may help, and asked for twice where an answer takes long.

use crate::client::Shared;
use crate::patience::pause;
use crate::trouble::Trouble;
use object_store::{GetOptions, GetRange};
use stallscope_pack::Got;
use std::ops::Range;
use std::time::Instant;

const MOST_WITHOUT_CREDENTIALS: u32 = 2;

/// Bytes of an object by its name in the pack.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) range: Range<u64>,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// With all that is tried again it takes at most as long as a read may.
pub(crate) async fn part(shared: &Shared, part: &Part) -> Result<Got, Trouble> {
    let _permit = shared.permits.acquire().await;
    let end = Instant::now() + shared.longest;
    let (mut failed, mut last) = (0, None);
    loop {
        let Ok(found) = tokio::time::timeout_at(end.into(), hedged(shared, part)).await else {
            return Err(Trouble::TooLate(last));
        };
        let (what, after) = match found {
            Err(Trouble::Passing { what, after }) => (what, after),
            // A machine's own service may be away for a moment; where there is none it is soon clear.
            Err(Trouble::NoCredentials) if failed < MOST_WITHOUT_CREDENTIALS => {
                ("no credentials".into(), None)
            }
            found => return found,
        };
        failed += 1;
        let left = end.saturating_duration_since(Instant::now());
        match pause(failed, after, shared.chance(), left) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(Trouble::TooLate(Some(what))),
        }
        last = Some(what);
    }
}

/// A second request is sent where the first takes longer than nearly all of its kind; the first whole answer counts.
async fn hedged(shared: &Shared, part: &Part) -> Result<Got, Trouble> {
    let (after, sent) = (shared.seen().sent(part.bytes()), Instant::now());
    let mut first = Box::pin(once(shared, part));
    tokio::select! {
        biased;
        found = &mut first => return found,
        () = tokio::time::sleep(after) => {}
    }
    if !shared.seen().may_send_twice() {
        return first.await;
    }
    let mut second = Box::pin(once(shared, part));
    tokio::select! {
        found = &mut first => match found {
            Err(Trouble::Passing { .. }) => second.await,
            found => found,
        },
        found = &mut second => match found {
            Err(Trouble::Passing { .. }) => first.await,
            found => {
                // At least so long: left out, what is slow would never be seen.
                shared.seen().took(part.bytes(), sent.elapsed());
                found
            }
        },
    }
}

async fn once(shared: &Shared, part: &Part) -> Result<Got, Trouble> {
    let sent = Instant::now();
    let options = GetOptions { range: Some(GetRange::Bounded(part.range.clone())), ..GetOptions::default() };
    let path = shared.folder.clone().join(part.name.as_str());
    let found = shared.store.get_opts(&path, options).await.map_err(|error| Trouble::of(&error))?;
    let (size, tag) = (found.meta.size, found.meta.e_tag.clone());
    let bytes = found.bytes().await.map_err(|error| Trouble::of(&error))?;
    if bytes.len() as u64 != part.range.end.min(size).saturating_sub(part.range.start) {
        return Err(Trouble::passing("the answer was cut"));
    }
    if !shared.is_same(&part.name, tag) {
        return Err(Trouble::Changed);
    }
    shared.seen().took(part.bytes(), sent.elapsed());
    Ok(Got { bytes: bytes.into(), size })
}
