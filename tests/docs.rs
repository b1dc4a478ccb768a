//! Links between README and docs lead somewhere: to a file that is there, and to a heading that it has.

use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).expect("docs is there");
    let docs = docs.map(|entry| entry.expect("docs can be read").path());
    let mut pages: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.extend(["README.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root.join(name)));
    pages
}

#[test]
fn no_page_has_two_sides_of_a_merge() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        let mark = text.lines().find(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(mark, None, "{}", page.display());
    }
}

/// The anchor that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut heading) = (BTreeSet::new(), None);
    for event in Parser::new(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::End(TagEnd::Heading(_)), Some(words)) => {
                found.insert(anchor(words));
                heading = None;
            }
            (Event::Text(words) | Event::Code(words), Some(heading)) => heading.push_str(&words),
            _ => {}
        }
    }
    found
}

/// Targets of links and pictures that are not on the web.
fn targets(text: &str) -> Vec<String> {
    let events = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    });
    events.filter(|target| !target.contains("://")).collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut links, mut dead) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        for target in targets(&text) {
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let leads = path.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&path).is_ok_and(|text| anchors(&text).contains(heading)));
            if !leads {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn readme_leads_to_every_page() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let linked: BTreeSet<String> = targets(&readme.expect("README.md is text"))
        .into_iter()
        .map(|target| target.split('#').next().unwrap_or_default().to_owned())
        .collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in pages() {
        let name = page.strip_prefix(root).expect("pages lie in the checkout").display().to_string();
        let apart = ["README.md", "SECURITY.md", "docs/SUMMARY.md"].contains(&name.as_str());
        assert!(apart || linked.contains(&name), "README.md does not lead to {name}");
    }
}

/// docs/SUMMARY.md is the table of contents of the site that `make docs` builds, which has no other pages.
#[test]
fn the_site_has_every_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md is text");
    let listed: BTreeSet<PathBuf> =
        targets(&summary).iter().filter_map(|target| docs.join(target).canonicalize().ok()).collect();
    for page in pages().iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        let page = page.canonicalize().expect("a page is there");
        assert!(listed.contains(&page), "docs/SUMMARY.md does not list {}", page.display());
    }
}

/// A page that has measurements has them in one section, which is its last: how-to and reference come first.
#[test]
fn measurements_are_the_last_section() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page is text");
        let sections: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        let at = sections.iter().position(|heading| heading.starts_with("## Measure"));
        let is_last = at.is_none_or(|at| at + 1 == sections.len() && sections[at] == "## Measurements");
        assert!(is_last, "{}: `## Measurements` is to be the last section", page.display());
    }
}
