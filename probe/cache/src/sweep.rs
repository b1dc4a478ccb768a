//! Samplers and policies over a range of cache sizes: the same figures as a table, CSV, JSON and a chart.

use crate::simulate::EpochFigures;
use std::fmt::Write;

/// One sampler and policy at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// "plain", "reuse x2", "iis + substitution 10%", …; "trace" for one that was recorded.
    pub draws: String,
    pub policy: &'static str,
    /// Of the data set's bytes.
    pub cache_share: f64,
    /// Over the later epochs, once the cache is full.
    pub later: EpochFigures,
    pub later_epochs: usize,
    /// Bytes read over the whole run, the filling of the cache too.
    pub read_bytes: u64,
}

impl Point {
    /// What no policy can exceed on these draws: `1 - (U - C) / n` with U samples used in an epoch of n uses, where C of
    /// equal size are kept.
    pub fn bound(&self, samples: u64) -> f64 {
        let uses = self.later.uses as f64 / self.later_epochs.max(1) as f64;
        let kept = self.cache_share * samples as f64;
        if uses > 0.0 { (1.0 - (self.later.unique as f64 - kept) / uses).clamp(0.0, 1.0) } else { 0.0 }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// Different samples there are.
    pub samples: u64,
    pub dataset_bytes: u64,
    pub points: Vec<Point>,
}

/// Colours of up to eight lines, distinguishable by the colour-blind (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

impl Sweep {
    /// Hit ratios by line and size, beside what an epoch reads: bytes for each byte of the data set, and requests for each of
    /// its samples.
    pub fn table(&self) -> String {
        let width = self.lines().iter().map(|(draws, policy)| draws.len() + policy.len() + 3).max();
        let width = width.unwrap_or(0).max(22);
        let mut text = format!("{:<width$}", "HITS (BYTES, REQUESTS)");
        for share in self.shares() {
            let _ = write!(text, "  {:>18}", format!("cache {}", percent(share)));
        }
        text.push('\n');
        for (draws, policy) in self.lines() {
            let _ = write!(text, "{:<width$}", format!("{draws} · {policy}"));
            for point in self.line(&draws, policy) {
                let (hits, bytes, requests) =
                    (percent(point.later.hit_ratio()), self.reads(point), self.requests(point));
                let _ = write!(text, "  {:>18}", format!("{hits} ({bytes:.2}, {requests:.2})"));
            }
            text.push('\n');
        }
        text
    }

    /// A line each point.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "sampling,policy,cache_share,hit_ratio,bound,uses,hits,later_epochs,later_read_bytes,evictions,unique,read_bytes,substitutions,requests,writes,written_bytes\n",
        );
        for point in &self.points {
            let later = &point.later;
            let _ = writeln!(
                text,
                "{},{},{},{:.6},{:.6},{},{},{},{},{},{},{},{},{},{},{}",
                point.draws,
                point.policy,
                point.cache_share,
                later.hit_ratio(),
                point.bound(self.samples),
                later.uses,
                later.hits,
                point.later_epochs,
                later.read_bytes,
                later.evictions,
                later.unique,
                point.read_bytes,
                later.substitutions,
                later.requests,
                later.writes,
                later.written_bytes,
            );
        }
        text
    }

    /// Hit ratio over cache size, as a picture that needs nothing from elsewhere.
    pub fn svg(&self) -> String {
        const WIDTH: u32 = 760;
        const HEIGHT: u32 = 420;
        const LEFT: f64 = 56.0;
        const TOP: f64 = 20.0;
        const PLOT_W: f64 = 460.0;
        const PLOT_H: f64 = 340.0;
        let most = self.shares().last().copied().unwrap_or(1.0).max(1e-9);
        let x = |share: f64| LEFT + PLOT_W * share / most;
        let y = |ratio: f64| TOP + PLOT_H * (1.0 - ratio);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
            viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n\
            <title>Hit ratio over cache size</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        );
        for tick in 0..=4 {
            let ratio = f64::from(tick) / 4.0;
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT:.1} {0:.1}h{PLOT_W:.1}\" stroke=\"#ddd\"/><text x=\"{1:.1}\" y=\"{2:.1}\" \
                text-anchor=\"end\">{3}</text>",
                y(ratio),
                LEFT - 6.0,
                y(ratio) + 4.0,
                percent(ratio),
            );
        }
        for share in self.shares() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(share),
                TOP + PLOT_H + 18.0,
                percent(share),
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">cache, of the data set</text>",
            LEFT + PLOT_W / 2.0,
            TOP + PLOT_H + 40.0,
        );
        for (number, (draws, policy)) in self.lines().into_iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            // Beyond eight lines, dashes tell them apart.
            let dashes = ["none", "6 4", "2 3"][(number / COLOURS.len()).min(2)];
            let path: String = self
                .line(&draws, policy)
                .enumerate()
                .map(|(at, point)| {
                    let letter = if at == 0 { 'M' } else { 'L' };
                    format!("{letter}{:.1} {:.1}", x(point.cache_share), y(point.later.hit_ratio()))
                })
                .collect();
            let (legend_x, legend_y) = (LEFT + PLOT_W + 20.0, TOP + 16.0 * (number as f64 + 0.5));
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>\
                <path d=\"M{legend_x:.1} {legend_y:.1}h18\" stroke=\"{colour}\" stroke-width=\"2\" \
                stroke-dasharray=\"{dashes}\"/><text x=\"{:.1}\" y=\"{:.1}\">{draws} · {policy}</text>",
                legend_x + 24.0,
                legend_y + 4.0,
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Bytes read in a later epoch, for each byte of the data set.
    pub fn reads(&self, point: &Point) -> f64 {
        let epochs = point.later_epochs.max(1) as f64;
        point.later.read_bytes as f64 / epochs / self.dataset_bytes.max(1) as f64
    }

    /// Read requests of a later epoch, for each sample there is.
    pub fn requests(&self, point: &Point) -> f64 {
        point.later.requests as f64 / point.later_epochs.max(1) as f64 / self.samples.max(1) as f64
    }

    fn lines(&self) -> Vec<(String, &'static str)> {
        let mut lines: Vec<(String, &'static str)> = Vec::new();
        for point in &self.points {
            let line = (point.draws.clone(), point.policy);
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }

    fn line<'a>(&'a self, draws: &'a str, policy: &'a str) -> impl Iterator<Item = &'a Point> + 'a {
        self.points.iter().filter(move |point| point.draws == draws && point.policy == policy)
    }

    fn shares(&self) -> Vec<f64> {
        let mut shares: Vec<f64> = self.points.iter().map(|point| point.cache_share).collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        shares
    }
}

/// `0.125` as "12.5%", `0.2` as "20%".
pub fn percent(share: f64) -> String {
    let text = format!("{:.1}", 100.0 * share);
    format!("{}%", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> Sweep {
        let point = |policy, cache_share: f64, hits| Point {
            draws: "plain".into(),
            policy,
            cache_share,
            later: EpochFigures {
                uses: 1000,
                hits,
                substitutions: 0,
                requests: 1000 - hits,
                read_bytes: 10 * (1000 - hits),
                writes: 0,
                written_bytes: 0,
                evictions: 3,
                unique: 500,
            },
            later_epochs: 2,
            read_bytes: 20_000,
        };
        Sweep {
            samples: 500,
            dataset_bytes: 5000,
            points: vec![
                point("lru", 0.1, 4),
                point("lru", 0.2, 21),
                point("minio", 0.1, 100),
                point("minio", 0.2, 200),
            ],
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_policy_and_a_column_for_each_size() {
        let table = sweep().table();
        assert_eq!(
            table,
            "HITS (BYTES, REQUESTS)           cache 10%           cache 20%\n\
             plain · lru              0.4% (1.00, 1.00)   2.1% (0.98, 0.98)\n\
             plain · minio             10% (0.90, 0.90)    20% (0.80, 0.80)\n"
        );
    }

    #[test]
    fn csv_and_picture_hold_every_point() {
        let sweep = sweep();
        assert_eq!(sweep.csv().lines().count(), 5);
        assert!(
            sweep.csv().contains("plain,minio,0.2,0.200000,0.200000,1000,200,2,8000,3,500,20000,0,800,0,0")
        );
        let svg = sweep.svg();
        assert_eq!(svg.matches("stroke-width=\"2\" stroke-dasharray=\"none\"/><path").count(), 2);
        assert!(svg.contains("plain · minio</text>"));
    }
}
