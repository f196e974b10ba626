//! The rooms of a crate: its top-level modules, which use each other from high to low only.

use std::path::Path;

use super::Finding;
use crate::structure::module_uses;
use crate::tree::Package;

/// A crate by its directory, with all of its top-level modules from low to high.
const ROOMS: [(&str, &[&str]); 1] = [(
    "crates/runtime",
    &[
        "platform",
        "stats",
        "background",
        "budget",
        "disk",
        "pool",
        "journal",
        "memory_plan",
        "shared",
        "protect",
        "error",
        "write_share",
        "worker",
        "collapser",
        "resize",
        "warm_up",
        "learn",
        "service",
        "runtime",
    ],
)];

/// Checks the modules of a package that is in the table.
pub fn check(package: &Package, findings: &mut Vec<Finding>) {
    let Some((_, rooms)) = ROOMS.iter().find(|(dir, _)| package.dir == Path::new(dir)) else {
        return;
    };
    for (file, room, used) in module_uses(package) {
        let messages = match height(rooms, &room) {
            None => vec![format!("{room} is not in the list of rooms: give it a height")],
            own => {
                let above = used.iter().filter(|other| height(rooms, other) > own);
                above
                    .map(|other| format!("{room} may not use {other}, which is above it"))
                    .collect()
            }
        };
        findings.extend(messages.into_iter().map(|message| Finding {
            file: file.to_path_buf(),
            line: 0,
            message,
        }));
    }
}

fn height(rooms: &[&str], of: &str) -> Option<usize> {
    rooms.iter().position(|room| *room == of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    fn found(text: &str) -> Vec<String> {
        let files = [
            ("crates/runtime/Cargo.toml", ""),
            ("crates/runtime/src/lib.rs", "mod pool;\nmod worker;\npub use worker::Engine;\n"),
            ("crates/runtime/src/pool/mod.rs", "mod header;\n"),
            ("crates/runtime/src/pool/header.rs", text),
            ("crates/runtime/src/worker.rs", "use crate::pool::Pool;\n"),
        ];
        let tree = Tree::of(files.map(|(file, text)| (file.into(), text.to_owned())).into());
        let mut findings = Vec::new();
        check(&tree.packages[0], &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_room_that_uses_a_higher_one_is_found() {
        let message = "crates/runtime/src/pool/header.rs:1: pool may not use worker, which is \
                       above it";
        for text in [
            "use crate::worker::Crew;\n",
            "use super::super::worker::Crew;\n",
            "fn f() -> crate::Engine {}\n",
        ] {
            assert_eq!(found(text), [message], "{text}");
        }
        let test = "#[cfg(test)]\nmod tests { use crate::worker::Crew; }\n";
        assert_eq!(found(test), Vec::<String>::new());
    }

    #[test]
    fn a_room_without_a_height_is_found() {
        let files =
            [("crates/runtime/Cargo.toml", ""), ("crates/runtime/src/attic.rs", "fn f() {}\n")];
        let tree = Tree::of(files.map(|(file, text)| (file.into(), text.to_owned())).into());
        let mut findings = Vec::new();
        check(&tree.packages[0], &mut findings);
        assert!(findings[0].message.starts_with("attic is not in the list"), "{findings:?}");
    }
}
