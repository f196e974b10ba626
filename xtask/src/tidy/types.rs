//! The size of types, which a limit on the length of files does not bound: a type whose methods are
//! spread over many files, with fields that all of them can reach, is one long file in disguise.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Finding;
use crate::source::RustSource;

/// Maximum methods of a type, trait implementations included.
const METHODS_MAX: usize = 60;
/// A type with this many methods is a component that must own its state, not a plain record.
const COMPONENT_METHODS_MIN: usize = 20;

/// The definition of a type in one crate.
#[derive(Default)]
struct TypeSize {
    methods: usize,
    open_fields: usize,
    /// The position of the struct.
    place: (PathBuf, usize),
}

/// Checks the types of a package, all of whose files are given.
pub fn check(sources: &[(PathBuf, RustSource)], findings: &mut Vec<Finding>) {
    let mut sizes: BTreeMap<String, TypeSize> = BTreeMap::new();
    for (file, source) in sources {
        for (of, methods) in source.impls() {
            sizes.entry(of).or_default().methods += methods;
        }
        for (of, line, open) in source.structs() {
            let size = sizes.entry(of).or_default();
            size.open_fields += open;
            size.place = (file.to_path_buf(), line + 1);
        }
    }
    for (of, size) in &sizes {
        let is_component = size.methods >= COMPONENT_METHODS_MIN;
        let mut find = |message| {
            let (file, line) = size.place.clone();
            findings.push(Finding { file, line, message });
        };
        if size.methods > METHODS_MAX {
            find(format!("{of} has {} methods, more than {METHODS_MAX}: split it", size.methods));
        }
        if is_component && size.open_fields > 0 {
            find(format!(
                "{of} has {} methods and {} fields open to the crate: make the fields private",
                size.methods, size.open_fields
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&[("a.rs".into(), RustSource::new(text))], &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    fn shard(fields: &str, methods: usize) -> String {
        format!("struct Shard {{ {fields} }}\nimpl Shard {{ {} }}\n", "fn f() {}\n".repeat(methods))
    }

    #[test]
    fn a_type_with_too_many_methods_is_found() {
        assert_eq!(found(&shard("a: u8", METHODS_MAX)), Vec::<String>::new());
        let many = found(&shard("a: u8", METHODS_MAX + 1));
        assert_eq!(many, ["a.rs:1: Shard has 61 methods, more than 60: split it"]);
    }

    #[test]
    fn a_component_with_open_fields_is_found_and_a_record_is_not() {
        let open = "pub(crate) a: u8, pub b: u8, c: u8";
        assert_eq!(found(&shard(open, COMPONENT_METHODS_MIN - 1)), Vec::<String>::new());
        let component = found(&shard(open, COMPONENT_METHODS_MIN));
        assert!(component[0].contains("20 methods and 1 fields open"), "{component:?}");
    }
}
