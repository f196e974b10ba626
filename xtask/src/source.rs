//! A Rust file as the rules see it: code, comments and strings are separated, and test code is
//! marked.
//!
//! This is a scanner, not a parser. It knows the lexical forms of Rust (nested comments, raw
//! strings, characters and lifetimes), matches brackets, and reads `use` trees. Line numbers stay
//! the same, so that a finding can name its line.

use std::path::{Path, PathBuf};

/// A scanned file.
pub struct RustSource {
    /// The whole text.
    text: Vec<char>,
    /// The start of each line.
    line_starts: Vec<usize>,
    /// The text, with comments and strings replaced by blanks.
    code: Vec<char>,
    /// The text, with everything but comments replaced by blanks.
    comments: Vec<char>,
    /// For each line, whether it is test code.
    test_lines: Vec<bool>,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// The line of its `fn`, from 0.
    pub first_line: usize,
    /// The line of its closing brace, from 0.
    pub last_line: usize,
}

impl RustSource {
    /// Scans `text`.
    pub fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().collect();
        let (code, comments) = separate(&text);
        let behind = text.iter().enumerate().filter(|(_, c)| **c == '\n').map(|(at, _)| at + 1);
        let line_starts: Vec<usize> = std::iter::once(0).chain(behind).collect();
        let test_lines = vec![false; line_starts.len()];
        let mut source = Self { text, line_starts, code, comments, test_lines };
        for (first, last) in source.test_items() {
            let (first, last) = (source.line_of(first), source.line_of(last));
            source.test_lines[first..=last].fill(true);
        }
        source
    }

    /// Marks the whole file as test code.
    pub fn all_is_test(&mut self) {
        self.test_lines.fill(true);
    }

    /// Whether the line (from 0) is test code.
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line).copied().unwrap_or(false)
    }

    /// Lines that are not test code.
    pub fn line_count(&self) -> usize {
        self.test_lines.iter().filter(|test| !**test).count().saturating_sub(1)
    }

    /// The text, line by line.
    pub fn lines(&self) -> Vec<String> {
        lines(&self.text)
    }

    /// The code, line by line, with comments and strings replaced by blanks.
    pub fn code_lines(&self) -> Vec<String> {
        lines(&self.code)
    }

    /// The comments, line by line, with everything else replaced by blanks.
    pub fn comment_lines(&self) -> Vec<String> {
        lines(&self.comments)
    }

    /// The functions with a body, in the order of the file.
    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for at in self.words("fn") {
            let name = self.word_after(at + 2);
            // A pointer type, `fn(u8)`, has no name.
            if let (false, Some((_, end))) = (name.is_empty(), self.body(at)) {
                let (first_line, last_line) = (self.line_of(at), self.line_of(end));
                functions.push(Function { name, first_line, last_line });
            }
        }
        functions
    }

    /// The `impl` blocks outside test code: the name of the type, and the number of functions.
    pub fn impls(&self) -> Vec<(String, usize)> {
        let functions: Vec<usize> = self.words("fn");
        let mut impls = Vec::new();
        for at in self.words("impl") {
            // `impl Trait` in a signature follows something; a block begins an item.
            let before = self.code[..at].iter().rfind(|c| !c.is_whitespace());
            let begins = matches!(before, None | Some('}' | ';' | '{' | ']'));
            if self.is_test(self.line_of(at)) || !begins {
                continue;
            }
            let Some((open, end)) = self.body(at) else { continue };
            let head: String = self.code[at + 4..open].iter().collect();
            let count = functions.iter().filter(|at| (open..end).contains(*at)).count();
            impls.push((implementing(&head), count));
        }
        impls
    }

    /// The structs with named fields outside test code: the name, the line (from 0), and the
    /// number of fields that are visible to the crate or a part of it.
    pub fn structs(&self) -> Vec<(String, usize, usize)> {
        let mut structs = Vec::new();
        for at in self.words("struct") {
            let line = self.line_of(at);
            let name = self.word_after(at + 6);
            if let (false, Some((open, end))) = (self.is_test(line), self.body(at)) {
                let body: String = self.code[open..end].iter().collect();
                structs.push((name, line, body.matches("pub(").count()));
            }
        }
        structs
    }

    /// The names of the structs, enums, traits and type aliases outside test code.
    pub fn types(&self) -> Vec<String> {
        let mut types = Vec::new();
        for keyword in ["struct", "enum", "trait", "type"] {
            for at in self.words(keyword) {
                let before = &self.code[self.line_starts[self.line_of(at)]..at];
                // An indented `type` is an associated one.
                let alias = before.first().is_none_or(|c| *c == 'p');
                let name = self.word_after(at + keyword.len());
                if !self.is_test(self.line_of(at))
                    && !name.is_empty()
                    && (keyword != "type" || alias)
                {
                    types.push(name);
                }
            }
        }
        types
    }

    /// The number of closures outside test code that have a name: `let name = |..|`.
    pub fn named_closures(&self) -> usize {
        let is_closure = |at: &usize| {
            let rest = self.code[*at..].iter().take(200).collect::<String>();
            let value = rest.split(['|', ';', '{']).next().and_then(|start| start.split_once('='));
            value.is_some_and(|(name, value)| {
                matches!(value.trim(), "" | "move")
                    && rest[name.len() + 1 + value.len()..].starts_with('|')
            })
        };
        let lets = self.words("let").into_iter().filter(|at| !self.is_test(self.line_of(*at)));
        lets.filter(is_closure).count()
    }

    /// The paths outside test code that begin with `crate::` or `super::`.
    pub fn local_paths(&self) -> Vec<String> {
        let mut paths = self.uses();
        for at in ["crate", "super"].iter().flat_map(|word| self.words(word)) {
            // The rest of a longer path was found with its beginning.
            if at == 0 || self.code[at - 1] != ':' {
                let path = self.code[at..].iter().take_while(|c| is_word(**c) || **c == ':');
                paths.push((self.line_of(at), path.collect()));
            }
        }
        paths.retain(|(line, path)| {
            let head = path.split_once("::").map_or("", |(head, _)| head);
            matches!(head, "crate" | "super") && !path.ends_with(':') && !self.is_test(*line)
        });
        paths.into_iter().map(|(_, path)| path).collect()
    }

    /// The imported paths, each in full, with the line (from 0) of its `use`.
    pub fn uses(&self) -> Vec<(usize, String)> {
        let mut uses = Vec::new();
        for at in self.words("use") {
            let tree: String = self.code[at + 3..].iter().take_while(|c| **c != ';').collect();
            let line = self.line_of(at);
            let mut paths = Vec::new();
            expand(&tree, "", &mut paths);
            uses.extend(paths.into_iter().map(|path| (line, path)));
        }
        uses
    }

    /// The possible files of each `mod name;` in `file`, either in test code or outside it.
    pub fn declared_modules(&self, file: &Path, test: bool) -> Vec<PathBuf> {
        let dir = file.parent().unwrap_or(Path::new(""));
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
        let base = match stem {
            "lib" | "main" | "mod" => dir.to_path_buf(),
            stem => dir.join(stem),
        };
        let mut modules = Vec::new();
        for at in self.words("mod") {
            let rest: String = self.code[at + 3..].iter().take(200).collect();
            let rest = rest.trim_start();
            let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
            let ends = rest[name.len()..].trim_start().starts_with(';');
            if ends && self.is_test(self.line_of(at)) == test {
                if let Some(path) = self.path_attribute(at) {
                    modules.push(dir.join(path));
                    continue;
                }
                modules.push(base.join(format!("{name}.rs")));
                modules.push(base.join(&name).join("mod.rs"));
            }
        }
        modules
    }

    /// The `#[path = "..."]` of the item whose keyword is at `at`.
    fn path_attribute(&self, at: usize) -> Option<String> {
        let start = self.code[..at].iter().rposition(|c| matches!(c, ';' | '}')).unwrap_or(0);
        let code: String = self.code[start..at].iter().collect();
        let attribute = start + code[..code.find("#[path")?].chars().count();
        let text = self.text[attribute..at].iter().collect::<String>();
        text.split('"').nth(1).map(str::to_owned)
    }

    /// The positions of `call`, which ends with a parenthesis, in the code, each with the text of
    /// its argument if that is a plain string.
    pub fn arguments(&self, call: &str) -> Vec<(usize, Option<String>)> {
        let call: Vec<char> = call.chars().collect();
        let called = |at: &usize| self.code[*at..].starts_with(&call);
        let argument = |at: usize| {
            let rest: String = self.text[at + call.len()..].iter().take(200).collect();
            Some(rest.trim_start().strip_prefix('"')?.split('"').next()?.to_owned())
        };
        (0..self.code.len()).filter(called).map(|at| (at, argument(at))).collect()
    }

    /// Positions of `word` as a whole word.
    pub fn words(&self, word: &str) -> Vec<usize> {
        let word: Vec<char> = word.chars().collect();
        let word_at = |at: &usize| {
            let end = at + word.len();
            self.code[*at..end] == word[..]
                && (*at == 0 || !is_word(self.code[at - 1]))
                && self.code.get(end).is_none_or(|c| !is_word(*c))
        };
        (0..(self.code.len() + 1).saturating_sub(word.len())).filter(word_at).collect()
    }

    /// The word that follows a position, perhaps after blanks; empty if there is none.
    fn word_after(&self, at: usize) -> String {
        let rest = self.code[at..].iter().skip_while(|c| c.is_whitespace());
        rest.take_while(|c| is_word(**c)).collect()
    }

    /// The line (from 0) of a position in the text.
    pub fn line_of(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at) - 1
    }

    /// The first and last position of each item with `#[test]`, `#[cfg(test)]` or similar.
    fn test_items(&self) -> Vec<(usize, usize)> {
        let mut items = Vec::new();
        let mut at = 0;
        while let Some(start) = self.code[at..].windows(2).position(|two| two == ['#', '[']) {
            let start = at + start;
            let Some(end) = self.matching(start + 1) else { break };
            at = end + 1;
            let attribute: String =
                self.code[start + 2..end].iter().filter(|c| !c.is_whitespace()).collect();
            let test = attribute == "test"
                || attribute == "cfg(test)"
                || attribute.starts_with("cfg(all(test,");
            if test {
                let last = self.item_end(at);
                items.push((start, last));
                at = last;
            }
        }
        items
    }

    /// The end of the item that begins at `at`: its semicolon or its closing brace.
    fn item_end(&self, at: usize) -> usize {
        match self.body(at) {
            Some((_, end)) => end,
            None => self.semicolon(at).unwrap_or(self.code.len().saturating_sub(1)),
        }
    }

    /// The braces of the item that begins at `at`; `None` if a semicolon ends it first.
    fn body(&self, at: usize) -> Option<(usize, usize)> {
        let open = self.first_outside(at, |c| c == '{' || c == ';')?;
        (self.code[open] == '{').then_some(())?;
        Some((open, self.matching(open)?))
    }

    fn semicolon(&self, at: usize) -> Option<usize> {
        self.first_outside(at, |c| c == ';')
    }

    /// The first wanted character from `at` on outside parentheses and square brackets.
    fn first_outside(&self, at: usize, wanted: impl Fn(char) -> bool) -> Option<usize> {
        let mut place = at;
        while let Some(c) = self.code.get(place) {
            if wanted(*c) {
                return Some(place);
            }
            if matches!(c, '(' | '[') {
                place = self.matching(place)?;
            }
            place += 1;
        }
        None
    }

    /// The closing bracket for the one at `open`.
    fn matching(&self, open: usize) -> Option<usize> {
        let mut depth = 0usize;
        for (place, c) in self.code.iter().enumerate().skip(open) {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(place);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Whether `c` may be part of a word.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The type of an `impl` block with this head, which includes generics.
fn implementing(head: &str) -> String {
    let mut depth = 0usize;
    let mut flat = String::new();
    for (at, c) in head.char_indices() {
        match c {
            '<' => depth += 1,
            // The `>` in the arrow of a function type is not a closing bracket.
            '>' if !head[..at].ends_with('-') => depth = depth.saturating_sub(1),
            _ if depth == 0 => flat.push(c),
            _ => {}
        }
    }
    let flat = flat.split(" where").next().unwrap_or_default();
    let of = flat.rsplit(" for ").next().unwrap_or_default();
    let name = of.rsplit("::").next().unwrap_or_default().trim();
    name.chars().filter(|c| is_word(*c)).collect()
}

fn lines(text: &[char]) -> Vec<String> {
    text.iter().collect::<String>().lines().map(str::to_owned).collect()
}

/// The paths of a `use` tree after `prefix`.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        let path: String = path.chars().filter(|c| !c.is_whitespace()).collect();
        paths.push(format!("{prefix}{path}"));
        return;
    };
    let head: String = tree[..open].chars().filter(|c| !c.is_whitespace()).collect();
    let prefix = format!("{prefix}{head}");
    let inside = tree[open + 1..].trim_end().trim_end_matches('}');
    let (mut depth, mut start) = (0, 0);
    let inside = format!("{}{},", inside, "}".repeat(unclosed(inside)));
    for (place, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inside[start..place].trim().is_empty() {
                    expand(&inside[start..place], &prefix, paths);
                }
                start = place + 1;
            }
            _ => {}
        }
    }
}

/// The number of open braces at the end of `text`: trimming may remove one too many.
fn unclosed(text: &str) -> usize {
    let count = |wanted| text.chars().filter(|c| *c == wanted).count();
    count('{').saturating_sub(count('}'))
}

/// Splits `text` into code and comments, both as long as the text.
fn separate(text: &[char]) -> (Vec<char>, Vec<char>) {
    let blank = |c: &char| if *c == '\n' { '\n' } else { ' ' };
    let mut code: Vec<char> = text.iter().map(blank).collect();
    let mut comments = code.clone();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (len, kind) = token(rest, at > 0 && is_word(text[at - 1]));
        match kind {
            TokenKind::Code => code[at..at + len].copy_from_slice(&rest[..len]),
            TokenKind::Comment => comments[at..at + len].copy_from_slice(&rest[..len]),
            TokenKind::Literal => {}
        }
        at += len;
    }
    (code, comments)
}

enum TokenKind {
    Code,
    Comment,
    Literal,
}

/// The length and kind of the token at the start of `rest`. With `in_word` it continues a word, so
/// that the `r` of `for"` does not begin a raw string.
fn token(rest: &[char], in_word: bool) -> (usize, TokenKind) {
    let two = (rest[0], rest.get(1).copied().unwrap_or('\n'));
    match two {
        ('/', '/') => (rest.iter().take_while(|c| **c != '\n').count(), TokenKind::Comment),
        ('/', '*') => (block_comment(rest), TokenKind::Comment),
        ('"', _) => (string(rest), TokenKind::Literal),
        ('\'', _) => character(rest),
        ('r' | 'b' | 'c', _) if !in_word => match raw_string(rest) {
            Some(len) => (len, TokenKind::Literal),
            None => (1, TokenKind::Code),
        },
        _ => (1, TokenKind::Code),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// A character literal, or the quote of a lifetime.
fn character(rest: &[char]) -> (usize, TokenKind) {
    match (rest.get(1), rest.get(2)) {
        (Some('\\'), _) => {
            // The character after the backslash may be a quote; the literal ends at the next one.
            let end = rest.iter().skip(3).take_while(|c| **c != '\'').count();
            ((end + 4).min(rest.len()), TokenKind::Literal)
        }
        (Some(_), Some('\'')) => (3, TokenKind::Literal),
        _ => (1, TokenKind::Code),
    }
}

/// The length of a raw string with its prefix (`r`, `br`, `cr`), if `rest` begins with one.
fn raw_string(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    if prefix > 2 || rest[prefix - 1] != 'r' {
        return None;
    }
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    if rest.get(prefix + hashes) != Some(&'"') {
        return None;
    }
    let mut at = prefix + hashes + 1;
    while at < rest.len() {
        if rest[at] == '"' && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        RustSource::new(text).code_lines().join("\n")
    }

    #[test]
    fn strings_and_comments_are_no_code() {
        let text = r##"let a = "x // y \" unsafe"; // unsafe
let b = r#"unsafe " "#; /* unsafe /* nested */ unsafe */ let c = '"'; let d = '\'';
let e = b"q";
fn f<'a>(x: &'a str) {} let g = '\u{41}'; let h = br"unsafe"; let var = c"unsafe";"##;
        let code = code(text);
        assert!(!code.contains("unsafe") && !code.contains("nested"), "{code}");
        for kept in ["let a", "let b", "let c", "let d", "let e", "fn f<'a>(x: &'a str)", "let h"] {
            assert!(code.contains(kept), "{kept} in {code}");
        }
        assert_eq!(code.lines().count(), 4);
        assert!(RustSource::new(text).comment_lines()[0].contains("// unsafe"));
    }

    #[test]
    fn test_code_is_marked_and_the_rest_is_not() {
        let text = "fn a() {}\n#[cfg(test)]\nuse x::{y};\nfn b() -> [u8; 2] {\n}\n\
                    #[cfg(test)]\n#[rustfmt::skip]\nmod tests {\n    fn c() {}\n}\nfn d() {}\n";
        let source = RustSource::new(text);
        let marked: Vec<usize> = (0..11).filter(|line| source.is_test(*line)).collect();
        assert_eq!(marked, [1, 2, 5, 6, 7, 8, 9]);
        assert_eq!(source.line_count(), 4);
    }

    #[test]
    fn functions_have_their_lines() {
        let text = "trait T {\n    fn none(&self);\n}\n\
                    fn some(a: [u8; 3])\nwhere\n    A: B,\n{\n    if x {\n    }\n}\n\
                    type P = fn(u8);\n";
        let functions = RustSource::new(text).functions();
        assert_eq!(functions, [Function { name: "some".to_owned(), first_line: 3, last_line: 9 }]);
    }

    #[test]
    fn impl_blocks_are_counted_by_type() {
        let text = "impl<T: Fn(u8) -> u8> a::Shard<T> {\n fn a() {}\n\
                    fn b(x: impl Into<u8>) {}\n}\n\
                    impl<T> From<T> for Shard<T> where T: X {\n fn from() {}\n}\n\
                    fn c() -> impl Iterator<Item = u8> {}\n\
                    #[cfg(test)]\nimpl Shard { fn t() {} }\n";
        let impls = RustSource::new(text).impls();
        assert_eq!(impls, [("Shard".to_owned(), 2), ("Shard".to_owned(), 1)]);
    }

    #[test]
    fn types_are_those_that_a_module_defines() {
        let text = "pub struct A;\nenum B<T> {}\ntype C = u8;\n\
                    pub(crate) trait D {\n    type E;\n}\n\
                    impl D for B<u8> {\n    type E = u8;\n}\n\
                    #[cfg(test)]\nstruct F;\n// struct G\n";
        assert_eq!(RustSource::new(text).types(), ["A", "B", "D", "C"]);
    }

    #[test]
    fn closures_with_a_name_are_counted() {
        let text = "fn f() {\n    let a = |x| x;\n    let mut b: Box<dyn Fn()> = move || {};\n\
                    let c = { 1 };\n let d = x | y;\n let e = map(|x| x);\n\
                    let Some(1 | 2) = z else {};\n}\n\
                    #[test]\nfn g() { let a = |x| x; }\n";
        assert_eq!(RustSource::new(text).named_closures(), 2);
    }

    #[test]
    fn paths_in_the_crate_are_found_in_imports_and_code() {
        let text = "use crate::{a::B, c};\nuse std::fs;\n\
                    pub(crate) fn f() -> super::super::D { crate::e::F::g() }\n\
                    #[test]\nfn g() { crate::h::i() }\n";
        let paths = RustSource::new(text).local_paths();
        assert_eq!(paths, ["crate::a::B", "crate::c", "crate::e::F::g", "super::super::D"]);
    }

    #[test]
    fn open_fields_are_counted_by_struct() {
        let text = "pub struct A<T> {\n pub(crate) a: T,\n pub b: u8,\n\
                    pub(super) c: u8,\n d: u8,\n}\n\
                    struct B(pub(crate) u8);\n";
        assert_eq!(RustSource::new(text).structs(), [("A".to_owned(), 0, 2)]);
    }

    #[test]
    fn use_trees_are_taken_apart() {
        let source =
            RustSource::new("use std::{io, fs::{self, File as F}, sync::Arc};\nuse a::b;\n");
        let paths: Vec<String> = source.uses().into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, ["std::io", "std::fs::self", "std::fs::File", "std::sync::Arc", "a::b"]);
    }

    #[test]
    fn modules_are_where_they_are_declared() {
        let source = RustSource::new("mod a;\n#[cfg(test)]\nmod t;\nmod inline {\n}\n");
        let file = Path::new("src/x.rs");
        assert_eq!(source.declared_modules(file, false)[0], Path::new("src/x/a.rs"));
        assert_eq!(source.declared_modules(file, false).len(), 2);
        assert_eq!(source.declared_modules(file, true)[0], Path::new("src/x/t.rs"));
        let elsewhere = RustSource::new("mod a;\n#[cfg(test)]\n#[path = \"x_tests.rs\"]\nmod t;\n");
        assert_eq!(elsewhere.declared_modules(file, true), [Path::new("src/x_tests.rs")]);
        assert_eq!(elsewhere.declared_modules(file, false)[0], Path::new("src/x/a.rs"));
        let root = source.declared_modules(Path::new("src/lib.rs"), false);
        assert_eq!(root, [Path::new("src/a.rs"), Path::new("src/a/mod.rs")]);
    }
}
