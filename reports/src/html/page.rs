//! The page: a head with the answer, then sections of charts, tables and notes.

use super::fill::Fill;
use super::table::Table;
use super::verdict::Verdict;
use askama::Template;
use askama::filters::HtmlSafe;

#[derive(Template)]
#[template(path = "page.html")]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) style: &'static str,
    pub(super) script: &'static str,
    /// Patterns that the charts are filled with.
    pub(super) patterns: String,
    pub(super) verdict: Verdict,
    pub(super) sections: Vec<Section>,
    /// The run as the JSON report has it, in a form that cannot end the element it stands in.
    pub(super) json: String,
    pub(super) made_by: &'static str,
}

pub(super) struct Section {
    /// Name of the section in links.
    pub(super) id: &'static str,
    pub(super) heading: &'static str,
    /// What the section says, in a sentence; may be empty.
    pub(super) lead: String,
    pub(super) blocks: Vec<Block>,
}

pub(super) enum Block {
    Heading(String),
    Chart(Chart),
    Table(Table),
    /// A remark, or what is missing and how to get it.
    Note(String),
    Facts(Vec<Fact>),
    Findings(Vec<Finding>),
}

/// An SVG with what its fills mean.
#[derive(Template)]
#[template(path = "chart.html")]
pub(super) struct Chart {
    /// Made by [`super::svg::Svg`], which escapes.
    pub(super) svg: String,
    pub(super) legends: Vec<Legend>,
    /// What stands in a margin left of the plot: "names" of rows, "figures" of an axis, or nothing.
    pub(super) margin: &'static str,
    pub(super) caption: String,
}

impl HtmlSafe for Chart {}

pub(super) struct Legend {
    /// What its fills have in common; empty where there is one legend.
    pub(super) name: &'static str,
    pub(super) fills: Vec<Fill>,
}

impl Legend {
    /// The only one of a chart.
    pub(super) fn only(fills: Vec<Fill>) -> Vec<Legend> {
        vec![Legend { name: "", fills }]
    }
}

pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// To be shown as it would be typed.
    pub(super) code: bool,
}

impl Fact {
    pub(super) fn new(name: &'static str, value: String) -> Fact {
        Fact { name, value, code: false }
    }
}

pub(super) struct Finding {
    pub(super) fill: Option<Fill>,
    pub(super) name: String,
    pub(super) finding: String,
    pub(super) evidence: String,
    pub(super) advice: String,
    /// Of training time, as text; empty when nothing is at stake.
    pub(super) share: String,
}
