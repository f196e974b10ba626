//! The files of the repository, read once: the Rust files by package, with test code marked.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::RustSource;

/// The hand-written files of a repository.
pub struct Tree {
    /// All of them, with their text, in the order of their paths.
    pub files: Vec<(PathBuf, String)>,
    /// The packages below the root.
    pub packages: Vec<Package>,
}

/// A package and its Rust files.
pub struct Package {
    /// Its directory, from the root of the repository.
    pub dir: PathBuf,
    /// Its Rust files. Test code is what only tests compile: folders of tests, fuzz targets, and
    /// files and items under `cfg(test)`.
    pub sources: Vec<(PathBuf, RustSource)>,
    /// Those of them that no module declares.
    pub undeclared: Vec<PathBuf>,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    /// When a file or folder cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for file in list_files(root)? {
            let bytes = fs::read(root.join(&file));
            let bytes = bytes.with_context(|| format!("reading {}", file.display()))?;
            files.push((file, String::from_utf8_lossy(&bytes).into_owned()));
        }
        Ok(Self::of(files))
    }

    /// A tree of these files, in the order of their paths.
    pub fn of(files: Vec<(PathBuf, String)>) -> Self {
        let manifests = files.iter().filter(|(file, _)| file.ends_with("Cargo.toml"));
        let dirs = manifests.filter_map(|(file, _)| file.parent());
        let packages = dirs.filter(|dir| *dir != "").map(|dir| Package::new(dir, &files)).collect();
        Self { files, packages }
    }

    /// The text of a file, empty if there is no such file.
    pub fn text(&self, file: impl AsRef<Path>) -> &str {
        let found = self.files.binary_search_by(|(path, _)| path.as_path().cmp(file.as_ref()));
        found.map_or("", |at| &self.files[at].1)
    }
}

impl Package {
    fn new(dir: &Path, files: &[(PathBuf, String)]) -> Self {
        let mut sources = Vec::new();
        let mut modules = BTreeSet::new();
        let mut test_modules = BTreeSet::new();
        for (file, text) in files {
            if file.starts_with(dir) && file.extension().is_some_and(|extension| extension == "rs")
            {
                let source = RustSource::new(text);
                modules.extend(source.declared_modules(file, false));
                test_modules.extend(source.declared_modules(file, true));
                sources.push((file.clone(), source));
            }
        }
        let mut undeclared = Vec::new();
        for (file, source) in &mut sources {
            let inside = file.strip_prefix(dir).unwrap_or(file);
            let product = inside.starts_with("src") || inside.starts_with("examples");
            if !product || test_modules.iter().any(|module| is_below(file, module)) {
                source.all_is_test();
            }
            let declared = modules.contains(file) || test_modules.contains(file);
            if inside.starts_with("src") && !declared && !is_root(inside) {
                undeclared.push(file.clone());
            }
        }
        Self { dir: dir.to_path_buf(), sources, undeclared }
    }

    /// The name of its directory.
    pub fn name(&self) -> &str {
        self.dir.file_name().and_then(|name| name.to_str()).unwrap_or("")
    }
}

/// Whether `file` is the file of `module` or of a module inside it.
fn is_below(file: &Path, module: &Path) -> bool {
    file == module
        || (module.ends_with("mod.rs") && module.parent().is_some_and(|dir| file.starts_with(dir)))
        || file.starts_with(module.with_extension(""))
}

/// Whether a file, by its path in the package, is a crate root.
fn is_root(inside: &Path) -> bool {
    inside == "src/lib.rs" || inside == "src/main.rs" || inside.parent() == Some("src/bin".as_ref())
}

/// The hand-written text files below `root`, as relative paths.
fn list_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let path = root.join(&dir);
        for entry in fs::read_dir(&path).with_context(|| format!("listing {}", path.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let file = dir.join(&name);
            let text = name.to_string_lossy();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                // Skip build output, history, and fuzzer data.
                if !matches!(&*text, "target" | ".git" | "corpus" | "artifacts") {
                    dirs.push(file);
                }
            } else if kind.is_file() && text != "Cargo.lock" {
                files.push(file);
            }
        }
    }
    files.sort();
    Ok(files)
}
