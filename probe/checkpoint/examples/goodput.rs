//! What each rule for the interval makes of 30 days of training with failures, simulated step by step: `goodput [SEEDS]`.
//! Prints a line of JSON for each job, failure trace, seed and rule.
//!
//! A job has steps of 4 s with 5% of noise. A save blocks it, slows its steps while it drains, and counts once it has
//! drained; in bad weather (an hour in five) all of that is dearer. A failure throws the job back to the last save that
//! counts, and costs a restart; rules then know again only what a new process knows. The oracle is the best fixed period in
//! hindsight for that very trace, by grid search.

use serde_json::json;
use stallscope_checkpoint::interval::{Interval, Rule, Settings, Step};

const STEP_S: f64 = 4.0;
const DAYS: f64 = 30.0 * 86_400.0;
const RESTART_S: f64 = 120.0;
const BUDGET: f64 = 0.02;

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

/// Times between failures, Weibull of that shape: 1 is exponential, less comes in bursts.
fn failures(random: &mut Random, mtbf_s: f64, shape: f64) -> Vec<f64> {
    // Gamma(1 + 1/shape) for 1 and 0.7.
    let gamma = if shape == 1.0 { 1.0 } else { 1.265_82 };
    let (mut at, mut times) = (0.0, Vec::new());
    while at < DAYS {
        at += mtbf_s / gamma * (-random.uniform().ln()).powf(1.0 / shape);
        times.push(at);
    }
    times
}

/// Goodput, and the part of the time that saves cost.
fn train(rule: Rule, cost: Cost, failures: &[f64], mtbf_s: Option<f64>, seed: u64) -> (f64, f64) {
    let mut random = Random(seed | 1);
    let (mut now, mut spent, mut done, mut kept) = (0.0, 0.0, 0_u64, 0_u64);
    let mut failed = 0;
    while now < DAYS {
        // The history's estimate: a failure a day before anything is known.
        let mtbf_s = mtbf_s.unwrap_or((now + 86_400.0) / (failed as f64 + 1.0));
        let settings = Settings { rule, overhead: BUDGET, mtbf_s, concurrent: 1 };
        let mut interval = Interval::new(settings);
        let mut draining: Option<(f64, f64, u64)> = None;
        let until = failures[failed].min(DAYS);
        while now < until {
            let bad = if (now / 3600.0) as u64 % 5 == 4 { cost.bad } else { 1.0 };
            let mut blocked_s = 0.0;
            if draining.is_none() && interval.due().is_some() {
                interval.begun();
                blocked_s = cost.blocked_s * bad;
                draining = Some((now, now + blocked_s + cost.drains_s * bad, done));
            }
            let slowed_s = draining.map_or(0.0, |_| STEP_S * cost.slows * bad);
            let wall_s = STEP_S * (0.95 + 0.1 * random.uniform()) + blocked_s + slowed_s;
            now += wall_s;
            spent += blocked_s + slowed_s;
            done += 1;
            interval.step(Step { wall_s, blocked_s, saving: draining.is_some() });
            if let Some((began, ends, step)) = draining
                && now >= ends
            {
                interval.drained(ends - began);
                kept = step;
                draining = None;
            }
        }
        if now >= DAYS {
            break;
        }
        failed += 1;
        done = kept;
        now += RESTART_S;
    }
    (done as f64 * STEP_S / now, spent / now)
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
    for (mtbf_h, shape, trace) in
        [(6.0, 1.0, "exponential"), (6.0, 0.7, "weibull"), (0.5, 1.0, "exponential")]
    {
        for cost in COSTS {
            for seed in 1..=seeds {
                let mtbf_s = mtbf_h * 3600.0;
                let failures = failures(&mut Random(seed * 7919), mtbf_s, shape);
                let run = |rule, mtbf_s| train(rule, cost, &failures, mtbf_s, seed);
                let fixed = |period_s: f64| (run(Rule::EverySeconds(period_s), None).0, period_s);
                let grid = (0..12).map(|at| fixed(20.0 * 1.6_f64.powi(at)));
                let best = grid.fold((0.0, 0.0), |best, now| if now.0 > best.0 { now } else { best });
                let rules = [
                    ("budget", Rule::Budget, Some(mtbf_s)),
                    ("budget, MTBF estimated", Rule::Budget, None),
                    ("Young/Daly", Rule::YoungDaly, Some(mtbf_s)),
                    ("every 10 min", Rule::EverySeconds(600.0), None),
                    ("every hour", Rule::EverySeconds(3600.0), None),
                    ("CheckFreq", Rule::CheckFreq, None),
                    ("CheckFreq as coded", Rule::CheckFreqAsCoded, None),
                    ("PCcheck", Rule::PcCheck, None),
                ];
                for (name, rule, mtbf_s) in rules {
                    let (goodput, overhead) = run(rule, mtbf_s);
                    println!(
                        "{}",
                        json!({
                            "trace": trace, "mtbf_h": mtbf_h, "save": cost.name, "seed": seed, "rule": name,
                            "goodput": goodput, "overhead": overhead, "oracle_goodput": best.0,
                            "oracle_period_s": best.1, "of_oracle": goodput / best.0,
                        })
                    );
                }
            }
        }
    }
}
