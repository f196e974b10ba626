//! Figures of the structure that may only fall. Each is stored as it is, so that what is gained is
//! kept: a figure below the stored one is a finding too, and is written here.

use super::Finding;
use crate::structure::{BARE, Structure};

const FILE: &str = "xtask/src/tidy/ratchets.rs";
/// The largest circle of top-level modules of each package that has one.
const CIRCLES: [(&str, usize); 7] = [
    ("bench", 2),
    ("backend", 3),
    ("config", 2),
    ("control", 2),
    ("frontend-nbd", 2),
    ("journal", 2),
    ("volume", 2),
];
/// How many of a hundred definitions of types share their name with another one.
const COLLIDING_PERCENT: usize = 17;
/// Definitions of a bare name, as `State`, beyond the first of each.
const BARE_NAMES: usize = 6;
/// Closures with a name: `let name = |..|`.
const NAMED_CLOSURES: usize = 794;

/// Compares the figures with the stored ones.
pub fn check(structure: &Structure, findings: &mut Vec<Finding>) {
    let names = BARE.join(", ");
    let figures = [
        ("COLLIDING_PERCENT", structure.colliding_percent(), COLLIDING_PERCENT, "name what it is"),
        ("BARE_NAMES", structure.bare_names(), BARE_NAMES, &*format!("say of what: {names}")),
        ("NAMED_CLOSURES", structure.closures, NAMED_CLOSURES, "write a function, or no name"),
    ];
    for (name, now, stored, remedy) in figures {
        compare(name, now, stored, remedy, findings);
    }
    for (package, now) in structure.circles() {
        let stored = CIRCLES.iter().find(|(name, _)| *name == package).map_or(0, |(_, size)| *size);
        let name = format!("CIRCLES of {package}");
        compare(&name, now, stored, "modules use each other in one direction", findings);
    }
}

fn compare(name: &str, now: usize, stored: usize, remedy: &str, findings: &mut Vec<Finding>) {
    let message = match now {
        now if now > stored => {
            format!("{name}: {now}, more than {stored}: {remedy} (see `cargo xtask structure`)")
        }
        now if now < stored => format!("{name}: {now}, less than {stored}: store {now}"),
        _ => return,
    };
    findings.push(Finding { file: FILE.into(), line: 0, message });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_differs_from_the_stored_one_is_found() {
        let found = |now| {
            let mut findings = Vec::new();
            compare("CLOSURES", now, 5, "fewer", &mut findings);
            findings.into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        assert_eq!(found(5), Vec::<String>::new());
        assert_eq!(found(6), ["CLOSURES: 6, more than 5: fewer (see `cargo xtask structure`)"]);
        assert_eq!(found(4), ["CLOSURES: 4, less than 5: store 4"]);
    }
}
