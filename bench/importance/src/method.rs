//! What is compared: a sampling, with the policy that goes with it.

use stallscope_cache::{DrawKind, PolicyKind, Selection};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    pub(crate) draws: Rule,
    pub(crate) policy: PolicyKind,
    /// Importance hears of gradient norms, the published samplers of losses.
    pub(crate) by_gradient: bool,
    /// Of an epoch's draws, how many may be given another sample of their class.
    pub(crate) substitute: f64,
}

/// How the draws follow from the cache's share of the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Always(DrawKind),
    /// So many uses of a sample while it is in the window; half of the cache is pinned, nine tenths of a large one.
    Reuse(u32),
}

impl Method {
    pub(crate) fn draws(&self, cache_share: f64) -> DrawKind {
        match self.draws {
            Rule::Always(kind) => kind,
            Rule::Reuse(uses) => {
                let pinned_share = cache_share * if cache_share >= 0.5 { 0.9 } else { 0.5 };
                DrawKind::Reuse { uses, window_share: cache_share - pinned_share, pinned_share }
            }
        }
    }
}

/// The first is what all others are compared with.
pub(crate) const METHODS: [Method; 13] = [
    plain("shuffle + static pin", PolicyKind::MinIo),
    plain("shuffle + LRU", PolicyKind::Lru),
    shade("SHADE as published, 3 copies", Selection::AsPublished, 3.0),
    shade("SHADE corrected, 3 copies", Selection::Corrected, 3.0),
    shade("SHADE corrected", Selection::Corrected, 1.0),
    iis("iCACHE's IIS as published", Selection::AsPublished),
    iis("iCACHE's IIS corrected", Selection::Corrected),
    Method { name: "IIS corrected + substitution 10%", substitute: 0.1, ..iis("", Selection::Corrected) },
    Method {
        name: "SHADE's draws, known ahead + MIN",
        policy: PolicyKind::Min,
        ..shade("", Selection::Corrected, 1.0)
    },
    IMPORTANCE,
    Method { name: "importance + MIN + substitution 10%", substitute: 0.1, ..IMPORTANCE },
    reuse("reuse x2", 2),
    reuse("reuse x3", 3),
];

const IMPORTANCE: Method = Method {
    name: "importance + MIN",
    draws: Rule::Always(DrawKind::Importance),
    policy: PolicyKind::Min,
    by_gradient: true,
    substitute: 0.0,
};

const fn plain(name: &'static str, policy: PolicyKind) -> Method {
    Method { name, draws: Rule::Always(DrawKind::Plain), policy, by_gradient: false, substitute: 0.0 }
}

const fn shade(name: &'static str, selection: Selection, copies: f64) -> Method {
    let draws = Rule::Always(DrawKind::Shade { selection, copies });
    Method { name, draws, policy: PolicyKind::Shade, by_gradient: false, substitute: 0.0 }
}

const fn iis(name: &'static str, selection: Selection) -> Method {
    Method {
        name,
        draws: Rule::Always(DrawKind::Iis(selection)),
        policy: PolicyKind::Icache,
        by_gradient: false,
        substitute: 0.0,
    }
}

const fn reuse(name: &'static str, uses: u32) -> Method {
    Method { name, draws: Rule::Reuse(uses), policy: PolicyKind::Min, by_gradient: false, substitute: 0.0 }
}
