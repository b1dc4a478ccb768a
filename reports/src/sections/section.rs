//! What a section is made of: a heading, a sentence, and charts, tables and remarks.

use super::fill::Fill;
use super::table::Table;
use askama::Template;
use askama::filters::HtmlSafe;

pub(crate) struct Section {
    /// Name of the section in links.
    pub(crate) id: &'static str,
    pub(crate) heading: &'static str,
    /// What the section says, in a sentence; may be empty.
    pub(crate) lead: String,
    pub(crate) blocks: Vec<Block>,
}

pub(crate) enum Block {
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
pub(crate) struct Chart {
    /// Made by [`super::svg::Svg`], which escapes.
    pub(crate) svg: String,
    pub(crate) legends: Vec<Legend>,
    /// What stands in a margin left of the plot: "names" of rows, "figures" of an axis, or nothing.
    pub(crate) margin: &'static str,
    pub(crate) caption: String,
}

impl HtmlSafe for Chart {}

pub(crate) struct Legend {
    /// What its fills have in common; empty where there is one legend.
    pub(crate) name: &'static str,
    pub(crate) fills: Vec<Fill>,
}

impl Legend {
    /// The only one of a chart.
    pub(crate) fn only(fills: Vec<Fill>) -> Vec<Legend> {
        vec![Legend { name: "", fills }]
    }
}

pub(crate) struct Fact {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// To be shown as it would be typed.
    pub(crate) code: bool,
}

impl Fact {
    pub(crate) fn new(name: &'static str, value: String) -> Fact {
        Fact { name, value, code: false }
    }
}

pub(crate) struct Finding {
    pub(crate) fill: Option<Fill>,
    pub(crate) name: String,
    pub(crate) finding: String,
    pub(crate) evidence: String,
    pub(crate) advice: String,
    /// Of training time, as text; empty when nothing is at stake.
    pub(crate) share: String,
}
