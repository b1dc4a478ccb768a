//! What areas are filled with: the colour of a cause, and a pattern for readers who cannot distinguish colours.

use stallscope_look::palette;
use stallscope_model::{CacheUses, Cause, Doing, Phase};
use std::fmt::Write;

/// What an area stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Cause(Cause),
    Doing(Doing),
    /// In a grey of the style sheet's.
    Phase(Phase),
    Found(Found),
}

/// What a draw was found as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Reused,
    Prefetched,
    Substituted,
    Missed,
}

impl Found {
    pub(crate) const ALL: [Found; 4] = [Found::Reused, Found::Prefetched, Found::Substituted, Found::Missed];

    const fn name(self) -> &'static str {
        match self {
            Found::Reused => "reused",
            Found::Prefetched => "fetched ahead",
            Found::Substituted => "substituted",
            Found::Missed => "missed",
        }
    }

    /// Of the pattern, in an address.
    const fn id(self) -> &'static str {
        match self {
            Found::Prefetched => "prefetched",
            other => other.name(),
        }
    }

    pub(crate) fn of(self, uses: &CacheUses) -> u64 {
        match self {
            Found::Reused => uses.reuses(),
            Found::Prefetched => uses.prefetched,
            Found::Substituted => uses.substitutions,
            Found::Missed => uses.misses,
        }
    }

    /// Whose colour it has.
    const fn like(self) -> Cause {
        match self {
            Found::Reused => Cause::Compute,
            Found::Prefetched => Cause::Transfer,
            Found::Substituted => Cause::Peer,
            Found::Missed => Cause::Fetch,
        }
    }
}

impl Fill {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Fill::Cause(cause) => cause.name(),
            Fill::Doing(doing) => doing.name(),
            Fill::Phase(phase) => phase.name(),
            Fill::Found(found) => found.name(),
        }
    }

    /// The attribute that fills an element with it.
    pub(crate) fn attribute(self) -> String {
        match self {
            Fill::Phase(phase) => format!("class=\"phase-{}\"", phase as usize),
            Fill::Found(found) => format!("fill=\"url(#fill-{})\"", found.id()),
            _ => format!("fill=\"url(#fill-{})\"", self.name()),
        }
    }

    /// A small square of it, for legends and tables.
    pub(crate) fn swatch(self) -> String {
        format!(
            "<svg class=\"swatch\" width=\"12\" height=\"12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" \
             rx=\"2\" {}/></svg>",
            self.attribute()
        )
    }
}

/// What a task does has the colour of the cause that a wait for it is counted as.
const fn waited_for(doing: Doing) -> Cause {
    match doing {
        Doing::Computing => Cause::Compute,
        Doing::Runnable => Cause::Starved,
        Doing::Reading | Doing::Network => Cause::Fetch,
        Doing::Writing => Cause::Persist,
        Doing::Waiting => Cause::Peer,
        Doing::Other => Cause::Unknown,
    }
}

/// Strokes on a tile of 8 by 8, drawn over the colour; those that leave the tile come in again.
const fn strokes(cause: Cause) -> &'static str {
    match cause {
        Cause::Compute => "",
        Cause::Fetch => "M-2 2L2 -2M0 8L8 0M6 10L10 6",
        Cause::Prep => "M1 2h2M5 6h2",
        Cause::Starved => "M0 0L8 8M8 0L0 8",
        Cause::Transfer => "M0 4H8",
        Cause::Preempted => "M-2 6L2 10M0 0L8 8M6 -2L10 2",
        Cause::Snapshot => "M4 0V8",
        Cause::Persist => "M0 4H8M4 0V8",
        Cause::Peer => "M3 4h2",
        Cause::Unknown => "M1 7L3 5",
    }
}

/// The patterns that [`Fill::attribute`] names, to stand once in the page.
pub(crate) fn patterns() -> String {
    let mut text =
        String::from("<svg class=\"patterns\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>");
    let causes = Cause::ALL.map(|cause| (cause.name(), cause, strokes(cause)));
    let doings = Doing::ALL.map(|doing| match doing {
        // Of the colour of reading, and not the same.
        Doing::Network => (doing.name(), waited_for(doing), "M0 2H4M4 6H8"),
        _ => (doing.name(), waited_for(doing), strokes(waited_for(doing))),
    });
    let founds = Found::ALL.map(|found| (found.id(), found.like(), strokes(found.like())));
    for (name, cause, strokes) in causes.into_iter().chain(doings).chain(founds) {
        let (red, green, blue) = palette::rgb(cause);
        let _ = write!(
            text,
            "<pattern id=\"fill-{name}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><rect width=\"8\" \
             height=\"8\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>"
        );
        if !strokes.is_empty() {
            let _ = write!(text, "<path d=\"{strokes}\" class=\"strokes\"/>");
        }
        text.push_str("</pattern>");
    }
    text.push_str("</defs></svg>");
    text
}
