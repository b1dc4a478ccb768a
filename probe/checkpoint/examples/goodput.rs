//! What each rule for the interval makes of 30 days of training with failures, simulated step by step:
//! `goodput [SEEDS [TRACE]]`, TRACE being a part of a name. Prints a line of JSON for each trace, cost of a save, seed and
//! rule.
//!
//! A job has steps of 4 s with 5% of noise. A save blocks it, slows its steps while it drains, and counts once it has
//! drained; in bad weather (an hour in five) all of that is dearer. A failure throws the job back to the last save that
//! counts, and costs a restart. What a rule keeps over a restart in practice it keeps here: the budget its account,
//! CheckFreq and PCcheck their profile. The oracle is the best fixed period in hindsight for that very trace, of all and of
//! those that keep the budget, by grid search.

use serde_json::json;
use stallscope_checkpoint::interval::{Account, Interval, Rule, Settings, Step};

const STEP_S: f64 = 4.0;
const DAYS: f64 = 30.0 * 86_400.0;
const RESTART_S: f64 = 120.0;
const BUDGET: f64 = 0.02;

/// When a job of 16 machines lost some of them: comments and one time a line, in hours.
const RECORDED: &str = include_str!("preemptions.txt");

/// What a save costs.
#[derive(Clone, Copy)]
struct Cost {
    name: &'static str,
    blocked_s: f64,
    /// Each step while it drains takes that part longer.
    slows: f64,
    drains_s: f64,
    /// All of it, in bad weather.
    bad: f64,
}

const COSTS: [Cost; 3] = [
    Cost { name: "small", blocked_s: 0.05, slows: 0.02, drains_s: 2.0, bad: 3.0 },
    Cost { name: "large", blocked_s: 1.0, slows: 0.05, drains_s: 30.0, bad: 4.0 },
    Cost { name: "huge", blocked_s: 8.0, slows: 0.1, drains_s: 120.0, bad: 2.0 },
];

struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}

/// When a job fails.
struct Trace {
    name: String,
    times_s: Vec<f64>,
    mtbf_s: f64,
}

/// Times between failures, Weibull of that shape: 1 is exponential, less comes in bursts.
fn drawn(seed: u64, mtbf_s: f64, shape: f64) -> Trace {
    let random = &mut Random(seed * 7919);
    // Gamma(1 + 1/shape) for 1 and 0.7.
    let gamma = if shape == 1.0 { 1.0 } else { 1.265_82 };
    let (mut at, mut times_s) = (0.0, Vec::new());
    while at < DAYS {
        at += mtbf_s / gamma * (-random.uniform().ln()).powf(1.0 / shape);
        times_s.push(at);
    }
    let name = if shape == 1.0 { "exponential" } else { "Weibull 0.7" };
    Trace { name: format!("{name}, every {} h", mtbf_s / 3600.0), times_s, mtbf_s }
}

/// The recorded hours over and over.
fn recorded() -> Trace {
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
    let hours: Vec<f64> = lines.filter_map(|line| line.parse().ok()).collect();
    let length_s = hours.last().map_or(DAYS, |last| last * 3600.0);
    let rounds = 0..=(DAYS / length_s) as u32;
    let times_s: Vec<f64> = rounds
        .flat_map(|round| hours.iter().map(move |hour| f64::from(round) * length_s + hour * 3600.0))
        .collect();
    Trace { name: "recorded".into(), times_s, mtbf_s: length_s / hours.len() as f64 }
}

/// What decides in the simulation.
enum Decides {
    Rule {
        rule: Rule,
        mtbf_s: Option<f64>,
        kept: Option<Kept>,
    },
    /// The oracle's: a save every so many seconds.
    Fixed(f64),
}

/// What is left of a rule when its job is killed.
enum Kept {
    Account(Account),
    Profile(Box<Interval>),
}

impl Decides {
    /// In a new process. `now`, `failed`: how long the job ran so far, and how often it failed.
    fn start(&mut self, now: f64, failed: usize) -> Option<Interval> {
        let Decides::Rule { rule, mtbf_s, kept } = self else { return None };
        // The history's estimate: a failure a day before anything is known.
        let mtbf_s = mtbf_s.unwrap_or((now + 86_400.0) / (failed as f64 + 1.0));
        let mut interval = Interval::new(Settings { rule: *rule, overhead: BUDGET, mtbf_s, concurrent: 1 });
        match kept {
            Some(Kept::Account(account)) => interval.resume(account),
            Some(Kept::Profile(profiled)) => interval = *profiled.clone(),
            None => {}
        }
        Some(interval)
    }

    /// A save has drained: the first one ends the profile of the published rules, which is kept as it is then.
    fn drained(&mut self, interval: &Interval) {
        if let Decides::Rule {
            rule: Rule::CheckFreq | Rule::CheckFreqAsCoded | Rule::PcCheck, kept, ..
        } = self
        {
            kept.get_or_insert_with(|| Kept::Profile(Box::new(interval.clone())));
        }
    }

    fn killed(&mut self, interval: Option<Interval>) {
        if let (Decides::Rule { rule: Rule::Budget, kept, .. }, Some(interval)) = (self, interval) {
            *kept = Some(Kept::Account(interval.account()));
        }
    }
}

/// Goodput, and the part of the time that saves cost.
fn train(mut decides: Decides, cost: Cost, trace: &Trace, seed: u64) -> (f64, f64) {
    let mut random = Random(seed | 1);
    let (mut now, mut spent, mut done, mut kept) = (0.0, 0.0, 0_u64, 0_u64);
    let mut failures = trace.times_s.iter().copied();
    let mut failed = 0;
    loop {
        let until = failures.next().unwrap_or(DAYS).min(DAYS);
        let mut interval = decides.start(now, failed);
        let mut since_last_s = 0.0;
        let mut draining: Option<(f64, f64, u64)> = None;
        while now < until {
            let bad = if (now / 3600.0) as u64 % 5 == 4 { cost.bad } else { 1.0 };
            let mut blocked_s = 0.0;
            let due = match (&decides, &interval) {
                (Decides::Fixed(period_s), _) => since_last_s >= *period_s,
                (_, interval) => interval.as_ref().is_some_and(|interval| interval.due().is_some()),
            };
            if due && draining.is_none() {
                since_last_s = 0.0;
                if let Some(interval) = &mut interval {
                    interval.begun();
                }
                blocked_s = cost.blocked_s * bad;
                draining = Some((now, now + blocked_s + cost.drains_s * bad, done));
            }
            let slows = if draining.is_some() { cost.slows * bad } else { 0.0 };
            let plain_s = STEP_S * (0.95 + 0.1 * random.uniform());
            let wall_s = plain_s * (1.0 + slows) + blocked_s;
            if now + wall_s > until {
                now = until;
                break;
            }
            now += wall_s;
            spent += blocked_s + plain_s * slows;
            since_last_s += wall_s;
            done += 1;
            let saving = draining.is_some();
            if let Some(interval) = &mut interval {
                interval.step(Step { wall_s, blocked_s, saving });
            }
            if let Some((began_s, ends_s, holds)) = draining
                && now >= ends_s
            {
                if let Some(interval) = &mut interval {
                    interval.drained(ends_s - began_s);
                    decides.drained(interval);
                }
                kept = holds;
                draining = None;
            }
        }
        if until >= DAYS {
            return (done as f64 * STEP_S / DAYS, spent / DAYS);
        }
        decides.killed(interval);
        failed += 1;
        done = kept;
        now = now.max(until) + RESTART_S;
    }
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
    let only = std::env::args().nth(2).unwrap_or_default();
    for seed in 1..=seeds {
        let hour = 3600.0;
        let traces =
            [drawn(seed, 6.0 * hour, 1.0), drawn(seed, 6.0 * hour, 0.7), drawn(seed, 0.5 * hour, 1.0)];
        for trace in traces.into_iter().chain([recorded()]) {
            for cost in COSTS.into_iter().filter(|_| trace.name.contains(&only)) {
                compare(&trace, cost, seed);
            }
        }
    }
}

fn compare(trace: &Trace, cost: Cost, seed: u64) {
    let fixed = |period_s: f64| {
        let (goodput, overhead) = train(Decides::Fixed(period_s), cost, trace, seed);
        (goodput, overhead, period_s)
    };
    let grid: Vec<_> = (0..30).map(|at| fixed(20.0 * 1.25_f64.powi(at))).collect();
    let best = |most: f64| {
        let kept = grid.iter().copied().filter(|(_, overhead, _)| *overhead <= most);
        kept.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default()
    };
    let (oracle, within) = (best(f64::INFINITY), best(BUDGET));
    let rules = [
        ("stallscope", Rule::Budget, Some(trace.mtbf_s)),
        ("stallscope, MTBF estimated", Rule::Budget, None),
        ("Young/Daly", Rule::YoungDaly, Some(trace.mtbf_s)),
        ("every 10 min", Rule::EverySeconds(600.0), None),
        ("every hour", Rule::EverySeconds(3600.0), None),
        ("CheckFreq", Rule::CheckFreq, None),
        ("CheckFreq as coded", Rule::CheckFreqAsCoded, None),
        ("PCcheck", Rule::PcCheck, None),
    ];
    for (name, rule, mtbf_s) in rules {
        let (goodput, overhead) = train(Decides::Rule { rule, mtbf_s, kept: None }, cost, trace, seed);
        println!(
            "{}",
            json!({
                "trace": trace.name, "save": cost.name, "seed": seed, "rule": name, "budget": BUDGET,
                "goodput": goodput, "overhead": overhead,
                "oracle": { "goodput": oracle.0, "overhead": oracle.1, "period_s": oracle.2 },
                "oracle_within_budget": { "goodput": within.0, "overhead": within.1, "period_s": within.2 },
            })
        );
    }
}
