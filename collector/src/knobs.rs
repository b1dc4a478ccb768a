//! The knobs of a job's processes: their pages together with the facts that they reported, and turning them.

use crate::foreign_text;
use stallscope_model::{Knob, KnobRequest, KnobState};
use stallscope_ring::{Answer, CollectorSide, Error, KnobFact, RequestNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

#[cfg(test)]
mod tests;

/// Knobs that are shown, of all processes together: with the longest texts they fit into one message.
const KNOBS: usize = 512;

/// Longest text of a shim's that is kept, in characters.
const TEXT: usize = 300;
const NAME: usize = 40;

/// The asking client, where only the page shows that there was one.
pub(crate) const EARLIER: &str = "an earlier collector";

/// Where a knob is: rank and loader.
pub(crate) type Place = (u32, Option<u16>);

#[derive(Debug, Default)]
pub(crate) struct Knobs {
    /// By connection.
    processes: BTreeMap<u64, Process>,
    /// As they last stood.
    ended: BTreeMap<(Place, String), Knob>,
}

#[derive(Debug, Default)]
struct Process {
    rank: u32,
    page: Option<CollectorSide>,
    /// By slot.
    knobs: BTreeMap<u32, Shown>,
}

#[derive(Debug)]
struct Shown {
    fact: KnobFact,
    asked: Option<Asked>,
}

#[derive(Clone, Debug)]
struct Asked {
    number: RequestNumber,
    value: u64,
    by: String,
}

/// The knobs that requests mean, and the values for them.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// Connection, slot and value.
    turns: Vec<(u64, u32, u64)>,
    places: BTreeSet<Place>,
}

impl Resolved {
    pub(crate) fn places(&self) -> Vec<Place> {
        self.places.iter().copied().collect()
    }
}

impl Knobs {
    /// A process of `rank` is there; or its rank turned out to be this.
    pub(crate) fn process(&mut self, connection: u64, rank: u32) {
        self.processes.entry(connection).or_default().rank = rank;
    }

    /// A process hands its page over.
    ///
    /// # Errors
    /// The descriptor is no page.
    pub(crate) fn arrived(&mut self, connection: u64, page: &OwnedFd) -> Result<(), Error> {
        let Some(process) = self.processes.get_mut(&connection) else { return Ok(()) };
        process.page = Some(CollectorSide::open(page)?);
        let facts: Vec<KnobFact> =
            std::mem::take(&mut process.knobs).into_values().map(|shown| shown.fact).collect();
        facts.into_iter().for_each(|fact| self.report(connection, fact));
        Ok(())
    }

    /// A process reports a knob, or something new of one.
    pub(crate) fn report(&mut self, connection: u64, mut fact: KnobFact) {
        let has_capacity = self.processes.values().map(|process| process.knobs.len()).sum::<usize>() < KNOBS;
        let Some(process) = self.processes.get_mut(&connection) else { return };
        for (text, limit) in [(&mut fact.name, NAME), (&mut fact.unit, NAME), (&mut fact.reason, TEXT)] {
            *text = foreign_text::short(text, limit);
        }
        match process.knobs.get_mut(&fact.slot) {
            Some(shown) if shown.fact.generation == fact.generation => shown.fact = fact,
            None if !has_capacity => {}
            _ => {
                // What a former process of this rank had is history now.
                self.ended.retain(|((rank, _), _), _| *rank != process.rank);
                let asked = process.page.as_mut().and_then(|page| resume(page, &fact));
                process.knobs.insert(fact.slot, Shown { fact, asked });
            }
        }
    }

    /// The process has withdrawn the knob in this slot.
    pub(crate) fn remove(&mut self, connection: u64, slot: u32) {
        if let Some(process) = self.processes.get_mut(&connection) {
            process.knobs.remove(&slot);
        }
    }

    /// The process is gone or hung up.
    pub(crate) fn gone(&mut self, connection: u64) {
        let Some(process) = self.processes.remove(&connection) else { return };
        for knob in process.state() {
            if self.ended.len() < KNOBS {
                self.ended.insert(((knob.rank, knob.loader), knob.name.clone()), knob);
            }
        }
    }

    /// What all of `requests` mean. A request that names no loader means those that `trains` says train, where a rank has
    /// any; knobs that cannot be turned are passed over where others can.
    ///
    /// # Errors
    /// One sentence: there is no such knob, rank or loader, the value is out of bounds, or none of them can be
    /// turned.
    pub(crate) fn resolve(
        &self,
        requests: &[KnobRequest],
        trains: &dyn Fn(u32, u16) -> bool,
    ) -> Result<Resolved, String> {
        let mut resolved = Resolved::default();
        for request in requests {
            for (connection, slot) in self.meant(request, trains)? {
                resolved.turns.push((connection, slot, request.value));
                let process = self.processes.get(&connection);
                let place =
                    process.and_then(|process| Some((process.rank, process.knobs.get(&slot)?.fact.loader)));
                resolved.places.extend(place);
            }
        }
        Ok(resolved)
    }

    /// Asks for it, in the name of `by`.
    pub(crate) fn ask(&mut self, resolved: &Resolved, by: &str) {
        for (connection, slot, value) in &resolved.turns {
            let Some(process) = self.processes.get_mut(connection) else { continue };
            let (Some(page), Some(shown)) = (process.page.as_mut(), process.knobs.get_mut(slot)) else {
                continue;
            };
            let last = match &shown.asked {
                Some(asked) => asked.number,
                None => RequestNumber::none(shown.fact.generation),
            };
            let number = last.next();
            page.ask(*slot, number, *value);
            shown.asked = Some(Asked { number, value: *value, by: by.into() });
        }
    }

    /// Connection and slot of the knobs that a request means and that can be turned to its value.
    fn meant(
        &self,
        request: &KnobRequest,
        trains: &dyn Fn(u32, u16) -> bool,
    ) -> Result<Vec<(u64, u32)>, String> {
        let KnobRequest { rank, loader, knob: name, value } = request;
        let all: Vec<Candidate<'_>> = self.candidates().collect();
        if all.is_empty() {
            return Err("this job shows no knobs: it has no loader yet, or runs without the shim".into());
        }
        let named: Vec<&Candidate<'_>> = all.iter().filter(|knob| knob.fact.name == *name).collect();
        if named.is_empty() {
            let names = list(all.iter().map(|knob| knob.fact.name.clone()));
            return Err(format!("there is no knob {name}; this job has {names}"));
        }
        let ranked: Vec<&Candidate<'_>> =
            named.iter().copied().filter(|knob| rank.is_none_or(|rank| rank == knob.rank)).collect();
        if let (Some(rank), true) = (rank, ranked.is_empty()) {
            let ranks = list(named.iter().map(|knob| knob.rank.to_string()));
            return Err(format!("rank {rank} has no knob {name}; it is there in rank {ranks}"));
        }
        let loaded: Vec<&Candidate<'_>> = match loader {
            Some(_) => ranked.iter().copied().filter(|knob| knob.fact.loader == *loader).collect(),
            None => {
                let training =
                    |knob: &Candidate<'_>| knob.fact.loader.is_none_or(|loader| trains(knob.rank, loader));
                let some: BTreeSet<u32> =
                    ranked.iter().filter(|knob| training(knob)).map(|knob| knob.rank).collect();
                ranked.iter().copied().filter(|knob| training(knob) || !some.contains(&knob.rank)).collect()
            }
        };
        if let (Some(loader), true) = (loader, loaded.is_empty()) {
            let loaders = list(ranked.iter().filter_map(|knob| Some(knob.fact.loader?.to_string())));
            return Err(format!("loader {loader} has no knob {name}; it is there in loader {loaders}"));
        }
        let available: Vec<&Candidate<'_>> =
            loaded.iter().copied().filter(|knob| knob.can_be_turned).collect();
        if available.is_empty() {
            let reason = loaded.first().map_or("", |knob| knob.fact.reason.as_str());
            return Err(format!("{name} cannot be turned here: {}", reason_given(reason)));
        }
        for Candidate { rank, fact, .. } in &available {
            let KnobFact { min, max, unit, .. } = fact;
            if !(*min..=*max).contains(value) {
                let of = fact.loader.map_or(String::new(), |loader| format!(", loader {loader}"));
                return Err(format!(
                    "{name}={value} is out of bounds: rank {rank}{of} takes {min} to {max} {unit}"
                ));
            }
        }
        Ok(available.iter().map(|knob| knob.at).collect())
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        self.processes.iter().flat_map(|(connection, process)| {
            process.knobs.iter().map(move |(slot, shown)| Candidate {
                at: (*connection, *slot),
                rank: process.rank,
                fact: &shown.fact,
                can_be_turned: shown.fact.available && process.page.is_some(),
            })
        })
    }

    /// Whether the job has answered all requests at these places.
    pub(crate) fn has_answered(&self, places: &[Place]) -> bool {
        let waits = |process: &Process, slot: &u32, shown: &Shown| {
            places.contains(&(process.rank, shown.fact.loader)) && process.waits(*slot, shown)
        };
        self.processes
            .values()
            .all(|process| !process.knobs.iter().any(|(slot, shown)| waits(process, slot, shown)))
    }

    /// All knobs, by rank, loader and name; those of processes that have ended as they last stood.
    pub(crate) fn state(&self) -> Vec<Knob> {
        let mut knobs: Vec<Knob> = self.processes.values().flat_map(Process::state).collect();
        let there: BTreeSet<(Place, &str)> =
            knobs.iter().map(|knob| ((knob.rank, knob.loader), knob.name.as_str())).collect();
        let ended: Vec<Knob> = self
            .ended
            .iter()
            .filter(|((place, name), _)| !there.contains(&(*place, name.as_str())))
            .map(|(_, knob)| knob.clone())
            .collect();
        knobs.extend(ended);
        knobs.truncate(KNOBS);
        knobs.sort_by(|a, b| (a.rank, a.loader, &a.name).cmp(&(b.rank, b.loader, &b.name)));
        knobs
    }
}

struct Candidate<'a> {
    at: (u64, u32),
    rank: u32,
    fact: &'a KnobFact,
    can_be_turned: bool,
}

impl Process {
    fn state(&self) -> Vec<Knob> {
        self.knobs.iter().map(|(slot, shown)| self.knob(*slot, shown)).collect()
    }

    fn knob(&self, slot: u32, Shown { fact, asked }: &Shown) -> Knob {
        let knob = Knob {
            rank: self.rank,
            loader: fact.loader,
            name: fact.name.clone(),
            unit: fact.unit.clone(),
            value: fact.value,
            initial: fact.initial,
            min: fact.min,
            max: fact.max,
            ..Knob::default()
        };
        let page = match &self.page {
            Some(page) if fact.available => page,
            _ => {
                return Knob {
                    state: KnobState::Unavailable,
                    reason: reason_given(&fact.reason).into(),
                    ..knob
                };
            }
        };
        let (value, answered) = match page.standing(slot).of(fact.generation) {
            Some((value, number, answer)) => (value, Some((number, answer))),
            None => (fact.value, None),
        };
        let knob = Knob { value, ..knob };
        let Some(Asked { number, value: wanted, by }) = asked else { return knob };
        let (state, reason) = match answered {
            Some((answered, answer)) if answered == *number => {
                let reason = if fact.answered == number.word() { fact.reason.as_str() } else { "" };
                match answer {
                    Answer::Own => return knob,
                    Answer::Applied => (KnobState::Applied, reason),
                    Answer::Pending => (KnobState::Pending, reason),
                    Answer::Refused => (KnobState::Refused, reason_given(reason)),
                }
            }
            _ => (KnobState::Pending, "the job has not looked yet; it looks at each batch"),
        };
        Knob { requested: Some(*wanted), state, reason: reason.into(), set_by: by.clone(), ..knob }
    }

    /// Whether a request is under way that the job has not answered.
    fn waits(&self, slot: u32, Shown { fact, asked }: &Shown) -> bool {
        let (Some(asked), Some(page)) = (asked, &self.page) else { return false };
        match page.standing(slot).of(fact.generation) {
            Some((_, number, answer)) if number == asked.number => {
                // Its words come on another way.
                answer == Answer::Refused && fact.answered != number.word()
            }
            _ => true,
        }
    }
}

/// What an earlier collector asked of a knob. Where it was killed before the job could know, the job learns of it
/// now.
fn resume(page: &mut CollectorSide, fact: &KnobFact) -> Option<Asked> {
    let (number, value) = page.requested(fact.slot);
    if !fact.available || !number.is_some() || !number.same_knob(RequestNumber::none(fact.generation)) {
        return None;
    }
    let value = match page.standing(fact.slot).of(fact.generation) {
        // It may have been killed within the next request, of which there is no number yet.
        Some((in_force, answered, Answer::Applied)) if answered == number => in_force,
        Some((_, answered, _)) if answered == number => value,
        _ => {
            page.ring();
            value
        }
    };
    Some(Asked { number, value, by: EARLIER.into() })
}

fn reason_given(reason: &str) -> &str {
    if reason.is_empty() { "the job does not say why" } else { reason }
}

/// "0, 1 and 5"
fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect::<BTreeSet<_>>().into_iter().collect();
    match words.as_slice() {
        [] => "none".into(),
        [one] => one.clone(),
        [some @ .., last] => format!("{} and {last}", some.join(", ")),
    }
}
