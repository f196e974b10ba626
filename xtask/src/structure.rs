//! How the code hangs together, in figures: circles of modules, names, closures, types that are
//! spread over files, assertions, short documentation. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use crate::lines;
use crate::source::RustSource;
use crate::tree::{Package, Tree};

/// Names that say nothing without their module.
pub const BARE: [&str; 8] = ["State", "Plan", "Entry", "Event", "Step", "Run", "Kind", "Part"];
/// What counts as an assertion; `debug_assert!` too, as it contains `assert!`.
const ASSERTIONS: [&str; 5] = ["assert!", "assert_eq!", "assert_ne!", "unreachable!", ".expect("];
/// Documentation of so few words says what the name says.
const SHORT_DOC_WORDS_MAX: usize = 3;

/// The figures of a tree.
#[derive(Default)]
pub struct Structure {
    packages: Vec<Shape>,
    /// The packages that define a type of this name, once for each definition.
    types: BTreeMap<String, Vec<String>>,
    /// Closures with a name.
    pub closures: usize,
    docs: usize,
    short_docs: usize,
}

/// The figures of a package.
struct Shape {
    name: String,
    /// The largest set of top-level modules that all use each other, directly or not.
    circle: Vec<String>,
    /// Types whose `impl` blocks stand in several files: in how many, and how many of these are
    /// outside the type's own folder.
    spread: Vec<(String, usize, usize)>,
    code: usize,
    assertions: usize,
}

impl Structure {
    /// Measures the workspace.
    pub fn of(tree: &Tree) -> Self {
        let mut structure = Self::default();
        // The fuzz targets are a workspace of their own.
        for package in tree.packages.iter().filter(|package| package.name() != "fuzz") {
            structure.add(package);
        }
        structure
    }

    fn add(&mut self, package: &Package) {
        let name = package.name().to_owned();
        let mut types: Vec<(String, &Path)> = Vec::new();
        let mut impls: BTreeMap<String, BTreeSet<&Path>> = BTreeMap::new();
        let (mut code, mut assertions) = (0, 0);
        for (file, source) in &package.sources {
            types.extend(source.types().into_iter().map(|of| (of, file.as_path())));
            for (of, _) in source.impls() {
                impls.entry(of).or_default().insert(file);
            }
            self.closures += source.named_closures();
            code += lines::count(source).code;
            assertions += assertions_in(source);
            for words in docs(source) {
                self.docs += 1;
                self.short_docs += usize::from(words <= SHORT_DOC_WORDS_MAX);
            }
        }
        let mut spread = Vec::new();
        for (of, files) in impls {
            // Of several types with one name, each has a file of its own.
            let homes: Vec<_> =
                types.iter().filter(|(name, _)| *name == of).map(|(_, file)| *file).collect();
            if !homes.is_empty() && files.len() > homes.len() {
                let strays =
                    files.iter().filter(|file| !homes.iter().any(|home| is_at_home(file, home)));
                let strays = strays.count();
                spread.push((of, files.len() + 1 - homes.len(), strays));
            }
        }
        spread.sort_by_key(|(_, files, _)| std::cmp::Reverse(*files));
        let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (_, module, used) in module_uses(package) {
            uses.entry(module).or_default().extend(used);
        }
        let circle = circle(&uses);
        for (of, _) in types {
            self.types.entry(of).or_default().push(name.clone());
        }
        self.packages.push(Shape { name, circle, spread, code, assertions });
    }

    /// The packages, each with the size of its largest circle of top-level modules, or 0.
    pub fn circles(&self) -> impl Iterator<Item = (&str, usize)> {
        self.packages.iter().map(|shape| (shape.name.as_str(), shape.circle.len()))
    }

    /// How many of a hundred definitions of types share their name with another one.
    pub fn colliding_percent(&self) -> usize {
        let all: usize = self.types.values().map(Vec::len).sum();
        self.colliding() * 100 / all.max(1)
    }

    fn colliding(&self) -> usize {
        self.types.values().map(Vec::len).filter(|count| *count > 1).sum()
    }

    /// Definitions of bare names beyond the first of each.
    pub fn bare_names(&self) -> usize {
        BARE.iter().filter_map(|name| self.types.get(*name)).map(|of| of.len() - 1).sum()
    }
}

impl Display for Structure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "circles of top-level modules, the largest of each package:")?;
        for shape in self.packages.iter().filter(|shape| !shape.circle.is_empty()) {
            writeln!(f, "  {:14}{:3}: {}", shape.name, shape.circle.len(), shape.circle.join(" "))?;
        }
        let all: usize = self.types.values().map(Vec::len).sum();
        let (colliding, percent) = (self.colliding(), self.colliding_percent());
        writeln!(f, "types that share their name: {colliding} of {all}, {percent} %")?;
        let mut names: Vec<_> = self.types.iter().filter(|(_, of)| of.len() > 1).collect();
        names.sort_by_key(|(_, of)| std::cmp::Reverse(of.len()));
        for (at, (name, of)) in names.into_iter().enumerate() {
            if at < 10 || BARE.contains(&name.as_str()) {
                writeln!(f, "  {name:14}{:3}: {}", of.len(), of.join(" "))?;
            }
        }
        writeln!(f, "definitions of {} beyond the first: {}", BARE.join(", "), self.bare_names())?;
        writeln!(f, "closures with a name: {}", self.closures)?;
        let spread = self.packages.iter().map(|shape| shape.spread.len()).sum::<usize>();
        writeln!(f, "types with impl blocks in several files: {spread}; in four or more:")?;
        for shape in &self.packages {
            for (of, files, _) in shape.spread.iter().filter(|(_, files, _)| *files >= 4) {
                writeln!(f, "  {:14}{files:3}: {of}", shape.name)?;
            }
        }
        writeln!(
            f,
            "types with impl blocks outside their file and folder, and in how many files:"
        )?;
        for shape in &self.packages {
            for (of, _, strays) in shape.spread.iter().filter(|(_, _, strays)| *strays > 0) {
                writeln!(f, "  {:14}{strays:3}: {of}", shape.name)?;
            }
        }
        writeln!(f, "assertions in a thousand lines of code:")?;
        for shape in &self.packages {
            let rate = shape.assertions as f64 * 1000.0 / shape.code.max(1) as f64;
            writeln!(f, "  {:14}{rate:5.1}", shape.name)?;
        }
        let (short, docs) = (self.short_docs, self.docs);
        writeln!(f, "docs of at most {SHORT_DOC_WORDS_MAX} words: {short} of {docs}")
    }
}

/// Whether `file` is the one that defines a type, `home`, or in the folder of its module. A type of
/// a file in a room may have methods in all of the room's files beside it.
fn is_at_home(file: &Path, home: &Path) -> bool {
    let folder = home.parent().filter(|folder| !folder.ends_with("src"));
    file == home || file.starts_with(folder.unwrap_or(&home.with_extension("")))
}

fn assertions_in(source: &RustSource) -> usize {
    let lines = source.code_lines().into_iter().enumerate().filter(|(at, _)| !source.is_test(*at));
    lines.map(|(_, line)| ASSERTIONS.iter().map(|of| line.matches(of).count()).sum::<usize>()).sum()
}

/// The number of words of each documentation comment.
fn docs(source: &RustSource) -> Vec<usize> {
    let lines = source.comment_lines().into_iter().enumerate();
    let words: Vec<Option<usize>> = lines
        .map(|(at, line)| {
            let doc = line.trim().strip_prefix("///").filter(|_| !source.is_test(at))?;
            Some(doc.split_whitespace().count())
        })
        .collect();
    let comments = words.chunk_by(|one, next| one.is_some() == next.is_some());
    comments.map(|lines| lines.iter().flatten().sum()).filter(|words| *words > 0).collect()
}

/// The files of a package, each with its top-level module and the others that it uses. The root,
/// which may use all, is left out.
pub fn module_uses(package: &Package) -> Vec<(&Path, String, BTreeSet<String>)> {
    let src = package.dir.join("src");
    let mut files = Vec::new();
    let mut exports = BTreeMap::new();
    for (file, source) in &package.sources {
        let Ok(inside) = file.strip_prefix(&src) else { continue };
        let mut path: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
        let stem = path.pop().unwrap_or("").trim_end_matches(".rs");
        if path.first() == Some(&"bin") || source.line_count() == 0 {
            continue;
        }
        match stem {
            "mod" => {}
            "lib" | "main" => {
                // What the root re-exports stands for the module that it comes from.
                for (_, export) in source.uses() {
                    let mut parts = export.split("::").filter(|part| *part != "crate");
                    if let (Some(module), Some(name)) = (parts.next(), parts.last()) {
                        exports.insert(name.to_owned(), module.to_owned());
                    }
                }
                continue;
            }
            stem => path.push(stem),
        }
        let locals = source.local_paths();
        let used: BTreeSet<_> =
            locals.iter().filter_map(|local| first_module(local, &path)).collect();
        files.push((file.as_path(), path[0].to_owned(), used));
    }
    let names: BTreeSet<String> = files.iter().map(|(_, module, _)| module.clone()).collect();
    exports.retain(|name, _| !names.contains(name));
    for (_, module, used) in &mut files {
        let others = used.iter().map(|name| exports.get(name).unwrap_or(name));
        let others = others.filter(|other| *other != module && names.contains(*other));
        *used = others.cloned().collect();
    }
    files
}

/// The top-level item that a path in the module `at` begins with; `None` for one in `at` itself.
fn first_module(local: &str, at: &[&str]) -> Option<String> {
    let (parents, rest): (Vec<&str>, Vec<&str>) =
        local.split("::").partition(|part| *part == "super");
    match rest.first() {
        Some(&"crate") => rest.get(1).map(|name| (*name).to_owned()),
        Some(name) if parents.len() == at.len() => Some((*name).to_owned()),
        _ => None,
    }
}

/// The largest set of modules that all use each other, directly or not.
fn circle(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reached: BTreeMap<_, _> =
        uses.keys().map(|from| (from, reached_from(from, uses))).collect();
    let mut largest = Vec::new();
    for (one, others) in &reached {
        let circle: Vec<_> = others.iter().filter(|other| reached[*other].contains(*one)).collect();
        if circle.len() > largest.len() {
            largest = circle;
        }
    }
    largest.into_iter().map(|name| (*name).clone()).collect()
}

fn reached_from<'a>(
    from: &'a String,
    uses: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(next) = todo.pop() {
        todo.extend(uses[next].iter().filter(|to| reached.insert(*to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(files: &[(&str, &str)]) -> Structure {
        let files = [("crates/a/Cargo.toml", "")].iter().chain(files);
        let mut files: Vec<_> = files.map(|(file, text)| (file.into(), (*text).into())).collect();
        files.sort();
        Structure::of(&Tree::of(files))
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle() {
        let structure = measured(&[
            (
                "crates/a/src/lib.rs",
                "mod one;\nmod two;\nmod three;\nmod four;\npub use three::T;\n",
            ),
            ("crates/a/src/one.rs", "use crate::two::X;\n"),
            ("crates/a/src/two/mod.rs", "mod deep;\nuse super::four::Y;\n"),
            ("crates/a/src/two/deep.rs", "use super::X;\nfn f() -> crate::T {}\n"),
            ("crates/a/src/three.rs", "fn f() { super::one::g() }\n"),
            ("crates/a/src/four.rs", "#[cfg(test)]\nuse crate::one::Z;\n"),
        ]);
        assert_eq!(structure.packages[0].circle, ["one", "three", "two"]);
        assert_eq!(structure.circles().collect::<Vec<_>>(), [("a", 3)]);
    }

    #[test]
    fn a_type_is_at_home_in_its_file_and_folder() {
        let at_home = |file, home| is_at_home(Path::new(file), Path::new(home));
        assert!(at_home("a/src/x/deep/y.rs", "a/src/x/mod.rs"));
        assert!(at_home("a/src/x/z.rs", "a/src/x/y.rs"));
        assert!(at_home("a/src/x/y.rs", "a/src/x.rs"));
        assert!(!at_home("a/src/y.rs", "a/src/x.rs"));
        assert!(!at_home("a/src/y/z.rs", "a/src/x/z.rs"));
    }

    #[test]
    fn names_types_assertions_and_docs_are_counted() {
        let structure = measured(&[
            ("crates/a/src/lib.rs", "mod x;\nmod y;\n/// The state.\nstruct State;\nstruct A;\n"),
            ("crates/a/src/x.rs", "/// One of a few.\nenum State {}\nimpl A {}\nimpl State {}\n"),
            ("crates/a/src/y.rs", "impl B for A {\nfn f() { assert!(x.expect(\"y\")) }\n}\n"),
        ]);
        assert_eq!((structure.bare_names(), structure.colliding_percent()), (1, 66));
        assert_eq!(structure.packages[0].spread, [("A".to_owned(), 2, 2)]);
        assert_eq!((structure.packages[0].code, structure.packages[0].assertions), (10, 2));
        assert_eq!((structure.docs, structure.short_docs), (2, 1));
    }
}
