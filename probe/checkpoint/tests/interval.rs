//! The budget holds whatever interferes, and the interval follows what saves cost.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use proptest::prelude::*;
use stallscope_checkpoint::interval::{Account, Interval, Rule, Settings, Step, Why};

const STEP_S: f64 = 0.1;

fn settings(rule: Rule, overhead: f64, mtbf_s: f64) -> Settings {
    Settings { rule, overhead, mtbf_s, concurrent: 1 }
}

/// What saves cost a made-up job at a moment: blocked at once, slowing each step while it drains, for so many steps.
#[derive(Clone, Copy, Debug)]
struct Cost {
    blocked_s: f64,
    slows_s: f64,
    steps: u32,
}

impl Cost {
    fn all(&self) -> f64 {
        self.blocked_s + self.slows_s * f64::from(self.steps)
    }
}

/// A job of steady steps whose saves cost what `cost` says at their time.
struct Job {
    interval: Interval,
    trained_s: f64,
    spent_s: f64,
    /// Each save: when, and what it cost.
    saves: Vec<(f64, f64)>,
    /// The dearest so far.
    dearest_s: f64,
    /// Of the save under way, and its steps to come.
    present: Option<(Cost, u32)>,
    began_s: f64,
}

impl Job {
    fn new(settings: Settings) -> Job {
        let (saves, present) = (Vec::new(), None);
        let interval = Interval::new(settings);
        Job { interval, trained_s: 0.0, spent_s: 0.0, saves, dearest_s: 0.0, present, began_s: 0.0 }
    }

    fn step(&mut self, cost_now: Cost) {
        let mut blocked_s = 0.0;
        if self.present.is_none() && self.interval.due().is_some() {
            self.interval.begun();
            blocked_s = cost_now.blocked_s;
            self.began_s = self.trained_s;
            self.saves.push((self.trained_s, cost_now.all()));
            self.dearest_s = self.dearest_s.max(cost_now.all());
            self.present = Some((cost_now, cost_now.steps));
        }
        let (mut slowed_s, mut saving, mut drained) = (0.0, blocked_s > 0.0, false);
        if let Some((cost, left)) = &mut self.present {
            saving = true;
            if *left > 0 {
                slowed_s = cost.slows_s;
                *left -= 1;
            }
            drained = *left == 0;
        }
        let wall_s = STEP_S + blocked_s + slowed_s;
        self.trained_s += wall_s;
        self.spent_s += blocked_s + slowed_s;
        self.interval.step(Step { wall_s, blocked_s, saving });
        if drained {
            self.interval.drained(self.trained_s - self.began_s);
            self.present = None;
        }
    }

    fn run(&mut self, seconds: f64, cost: Cost) {
        let until = self.trained_s + seconds;
        while self.trained_s < until {
            self.step(cost);
        }
    }

    fn saves_since(&self, since_s: f64) -> usize {
        self.saves.iter().filter(|(at, _)| *at >= since_s).count()
    }
}

fn cost() -> impl Strategy<Value = Cost> {
    (0.0..3.0_f64, 0.0..0.5_f64, 0..40_u32).prop_map(|(blocked_s, slows_s, steps)| Cost {
        blocked_s,
        slows_s,
        steps,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn cost_never_exceeds_the_budget_by_more_than_one_save(
        overhead in 0.001..0.2_f64,
        mtbf_s in 1.0..1e6_f64,
        weather in prop::collection::vec((cost(), 1..400_u32), 1..30),
    ) {
        let mut job = Job::new(settings(Rule::Budget, overhead, mtbf_s));
        for (cost, steps) in weather {
            for _ in 0..steps {
                job.step(cost);
                let allowed = overhead * job.trained_s + job.dearest_s + 1e-6;
                prop_assert!(job.spent_s <= allowed, "{} of {allowed}", job.spent_s);
            }
        }
        // What it thinks it spent is what was spent.
        prop_assert!((job.interval.spent_s() - job.spent_s).abs() < 1e-6 * job.trained_s.max(1.0));
    }

    #[test]
    fn no_rule_fails_on_any_figures(
        rule in prop::sample::select(vec![
            Rule::Budget, Rule::EverySteps(0), Rule::EverySteps(7), Rule::EverySeconds(f64::NAN), Rule::YoungDaly,
            Rule::CheckFreq, Rule::CheckFreqAsCoded, Rule::PcCheck,
        ]),
        overhead in any::<f64>(),
        mtbf_s in any::<f64>(),
        steps in prop::collection::vec((any::<f64>(), any::<f64>(), any::<bool>(), any::<f64>()), 0..300),
    ) {
        let mut interval = Interval::new(settings(rule, overhead, mtbf_s));
        for (wall_s, blocked_s, saving, persist_s) in steps {
            interval.step(Step { wall_s, blocked_s, saving });
            if interval.due().is_some() {
                interval.begun();
            }
            if saving {
                interval.drained(persist_s);
            }
            prop_assert!(!interval.interval_s().is_nan() || matches!(rule, Rule::EverySeconds(_)));
            prop_assert!(!interval.spent_s().is_nan());
        }
    }
}

const QUIET: Cost = Cost { blocked_s: 0.01, slows_s: 0.0, steps: 5 };
const LOUD: Cost = Cost { blocked_s: 0.2, slows_s: 0.02, steps: 20 };

#[test]
fn the_interval_grows_with_interference_and_shrinks_when_it_goes() {
    let mut job = Job::new(settings(Rule::Budget, 0.02, 60.0));
    job.run(300.0, QUIET);
    let quiet = job.interval.interval_s();
    job.run(1000.0, LOUD);
    let loud = job.interval.interval_s();
    job.run(1000.0, QUIET);
    let quiet_again = job.interval.interval_s();
    assert!(loud > 5.0 * quiet, "{quiet} {loud}");
    assert!((quiet_again - quiet).abs() < 0.1 * quiet, "{quiet} {quiet_again}");
}

#[test]
fn the_budget_is_the_jobs_however_often_it_is_cut_off() {
    let overhead = 0.02;
    // Failures ask for far more saves than the budget allows.
    let set = settings(Rule::Budget, overhead, 30.0);
    let cost = Cost { blocked_s: 0.3, slows_s: 0.01, steps: 10 };
    let (mut account, mut spent_s, mut trained_s, mut saves) = (None, 0.0, 0.0, 0);
    for life in 0..60 {
        let mut job = Job::new(set);
        if let Some(account) = &account {
            job.interval.resume(account);
        }
        // Some lives are shorter than the period, and a run that begins anew learns nothing by saving at once.
        job.run(8.0 + f64::from(life % 7) * 5.0, cost);
        account = Some(job.interval.account());
        (spent_s, trained_s) = (spent_s + job.spent_s, trained_s + job.trained_s);
        saves += job.saves.len();
        assert!(spent_s <= overhead * trained_s + cost.all() + 1e-6, "{spent_s} of {trained_s}");
    }
    assert!(saves > 20, "{saves}");
    assert!(spent_s > 0.8 * overhead * trained_s, "what a short life left is there for the next: {spent_s}");
}

#[test]
fn a_run_goes_on_with_what_the_one_before_knew_and_believes_no_nonsense() {
    let mut job = Job::new(settings(Rule::Budget, 0.02, 600.0));
    job.run(500.0, QUIET);
    let account = job.interval.account();
    let mut next = Interval::new(settings(Rule::Budget, 0.02, 600.0));
    next.resume(&account);
    assert_eq!(next.account(), account);
    for _ in 0..15 {
        next.step(Step { wall_s: STEP_S, ..Step::default() });
        assert_eq!(next.due(), None, "a save's cost is known already");
    }
    for nonsense in [f64::NAN, f64::INFINITY, -1.0] {
        let mut next = Interval::new(settings(Rule::Budget, 0.02, 600.0));
        let costs_s = vec![nonsense; 9];
        next.resume(&Account {
            spent_s: 1.0,
            trained_s: nonsense,
            costs_s,
            forfeited_s: nonsense,
            ..account.clone()
        });
        assert!(next.spent_s().is_finite() && next.interval_s().is_finite());
    }
    // A run without a budget spent half of its time; this one is not to pay for that.
    let mut next = Job::new(settings(Rule::Budget, 0.02, 1.0));
    next.interval.resume(&Account { spent_s: 1000.0, trained_s: 2000.0, costs_s: vec![0.01], ..account });
    next.run(60.0, QUIET);
    assert!(next.saves.len() > 10, "{}", next.saves.len());
}

#[test]
fn it_says_when_the_budget_forbids_what_failures_ask_for() {
    let cost = Cost { blocked_s: 1.0, slows_s: 0.0, steps: 5 };
    let mut tight = Job::new(settings(Rule::Budget, 0.01, 200.0));
    tight.run(500.0, cost);
    let (allowed_s, wanted_s) = tight.interval.account().forbidden().unwrap();
    assert!((allowed_s - 100.0).abs() < 1.0 && (wanted_s - 20.0).abs() < 1.0, "{allowed_s} {wanted_s}");
    let mut wide = Job::new(settings(Rule::Budget, 0.1, 200.0));
    wide.run(500.0, cost);
    assert_eq!(wide.interval.account().forbidden(), None);
}

#[test]
fn where_failures_are_rare_the_budget_is_not_used_up() {
    let mut job = Job::new(settings(Rule::Budget, 0.05, 6.0 * 3600.0));
    let cost = Cost { blocked_s: 1.0, slows_s: 0.0, steps: 5 };
    job.run(20_000.0, cost);
    // sqrt(2 * 1 s * 6 h) = 208 s.
    assert!((job.interval.interval_s() - 208.0).abs() < 5.0, "{}", job.interval.interval_s());
    assert!(job.spent_s < 0.01 * job.trained_s);
    assert!(job.saves.len() > 80, "{}", job.saves.len());
}

#[test]
fn a_save_that_drains_slowly_is_not_followed_at_once() {
    let mut job = Job::new(settings(Rule::Budget, 0.05, 1.0));
    let cost = Cost { blocked_s: 0.001, slows_s: 0.0, steps: 300 };
    job.run(1000.0, cost);
    let gaps = job.saves.windows(2).map(|two| two[1].0 - two[0].0);
    assert!(gaps.clone().count() > 20);
    for gap in gaps {
        assert!(gap >= 300.0 * STEP_S, "{gap}");
    }
}

#[test]
fn the_first_save_comes_after_a_few_steps_and_says_why() {
    let mut interval = Interval::new(settings(Rule::Budget, 0.02, 3600.0));
    let mut steps = 0;
    while interval.due().is_none() {
        interval.step(Step { wall_s: STEP_S, ..Step::default() });
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(interval.due(), Some(Why::First));
}

#[test]
fn a_period_that_somebody_set_holds_until_it_is_given_back() {
    let mut job = Job::new(settings(Rule::Budget, 0.02, 1e6));
    job.run(500.0, QUIET);
    let before = job.trained_s;
    job.interval.set_interval_s(Some(2.0));
    job.run(100.0, QUIET);
    let set = job.saves_since(before);
    assert!((45..=51).contains(&set), "{set}");
    let after = job.trained_s;
    job.interval.set_interval_s(None);
    job.run(100.0, QUIET);
    assert!(job.saves_since(after) < 5);
}

#[test]
fn the_baselines_do_what_was_published() {
    let cost = Cost { blocked_s: 0.0495, slows_s: 0.0, steps: 20 };
    // T_persist = 20 steps and 0.0495 s, so k = 20 by draining; 0.0495 / (0.01 * 0.1) = 49.5 by the budget.
    let steps_of = |rule, overhead| {
        let mut job = Job::new(settings(rule, overhead, 3600.0));
        job.run(60.0, cost);
        (job.interval.interval_s() / STEP_S).round() as u64
    };
    assert_eq!(steps_of(Rule::CheckFreq, 0.01), 50);
    assert_eq!(steps_of(Rule::CheckFreqAsCoded, 0.01), 20, "its code lacks the budget");
    assert_eq!(steps_of(Rule::PcCheck, 0.05), 20);
    let mut fixed = Job::new(settings(Rule::EverySteps(25), 0.01, 3600.0));
    fixed.run(100.0, cost);
    assert!((38..=40).contains(&fixed.saves.len()), "{}", fixed.saves.len());
}

#[test]
fn checkfreq_grows_its_interval_under_interference_and_never_shrinks_it() {
    let mut job = Job::new(settings(Rule::CheckFreq, 0.05, 3600.0));
    job.run(100.0, QUIET);
    let quiet = job.interval.interval_s();
    job.run(500.0, LOUD);
    let loud = job.interval.interval_s();
    job.run(2000.0, QUIET);
    assert!(loud > quiet);
    assert!(job.interval.interval_s() >= loud * 0.99);
}
