//! Which UPSes the machine needs: `rack-a`, `rack-a and rack-b`, `any 1 of (rack-a, rack-b)`,
//! `2 of (a, b, c)`.
//!
//! Every group has the form "N of these": `and` needs all, `or` needs one. [`Expression::fold`]
//! computes a value of any type from the leaves up.
//!
//! Mixing `and` and `or` requires parentheses, because users disagree about precedence. A UPS may
//! not appear twice in a group: it would count as two but fail as one.

use forebay_types::{Blame, Fault, Remedy};
use std::fmt;

/// Maximum length of an expression in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 1024;
/// Maximum number of UPSes in an expression.
pub const UPSES_MAX: usize = 32;
/// Maximum depth of parentheses.
const DEPTH_MAX: usize = 8;
const FORMS: &str = "write NAME, NAME and NAME, NAME or NAME, or N of (NAME, NAME, ...)";

/// An expression over named UPSes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    names: Vec<String>,
    root: ExprNode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExprNode {
    Ups(usize),
    /// At least `needed` of these nodes; `needed` is in `1..=nodes.len()`.
    Group {
        needed: usize,
        nodes: Vec<ExprNode>,
    },
}

/// A syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// The position of the error, in characters from 1.
    pub column: usize,
    message: String,
    remedy: String,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.message)
    }
}

impl std::error::Error for ExpressionError {}

impl Fault for ExpressionError {
    fn remedy(&self) -> Remedy {
        self.remedy.clone().into()
    }

    fn blame(&self) -> Blame {
        Blame::Operator
    }
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// On a syntax error, with its column.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        let tokens = tokens(text)?;
        let end = text.chars().count() + 1;
        let mut parser = Parser { tokens, at: 0, end, names: Vec::new() };
        let root = parser.chain(0)?;
        match parser.tokens.get(parser.at) {
            None => Ok(Self { names: parser.names, root }),
            Some((column, token)) => {
                let message = format!("unexpected {token}");
                Err(fail(*column, message, "join names with 'and' or 'or'"))
            }
        }
    }

    /// The names of the UPSes, in the order of first appearance.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Folds the expression: `leaf` returns the value of a UPS by its index; `group` combines the
    /// values of a group, and gets the number of them that are needed (from 1 to all).
    pub fn fold<T>(&self, leaf: impl Fn(usize) -> T, group: impl Fn(usize, Vec<T>) -> T) -> T {
        fold(&self.root, &leaf, &group)
    }

    /// Folds with the `needed`-th smallest value of each group. If the value is a severity, the
    /// result is the severity of the whole expression.
    pub fn smallest<T: Ord>(&self, leaf: impl Fn(usize) -> T) -> T {
        self.fold(leaf, |needed, mut values| {
            values.sort_unstable();
            values.swap_remove(needed - 1)
        })
    }
}

fn fold<T>(node: &ExprNode, leaf: &impl Fn(usize) -> T, group: &impl Fn(usize, Vec<T>) -> T) -> T {
    match node {
        ExprNode::Ups(index) => leaf(*index),
        ExprNode::Group { needed, nodes } => {
            group(*needed, nodes.iter().map(|node| fold(node, leaf, group)).collect())
        }
    }
}

impl fmt::Display for Expression {
    /// A form that parses to the same expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.root, &self.names, true))
    }
}

fn show(node: &ExprNode, names: &[String], outermost: bool) -> String {
    match node {
        ExprNode::Ups(index) => names[*index].clone(),
        ExprNode::Group { needed, nodes } => {
            let shown = |inner| nodes.iter().map(move |node| show(node, names, inner));
            let word = match needed {
                _ if nodes.len() < 2 => None,
                needed if *needed == nodes.len() => Some(" and "),
                1 => Some(" or "),
                _ => None,
            };
            match word {
                Some(word) if outermost => shown(false).collect::<Vec<_>>().join(word),
                Some(word) => format!("({})", shown(false).collect::<Vec<_>>().join(word)),
                None => format!("{needed} of ({})", shown(true).collect::<Vec<_>>().join(", ")),
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExprToken {
    Name(String),
    Number(usize),
    Mark(char),
}

impl fmt::Display for ExprToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "'{name}'"),
            Self::Number(number) => write!(f, "'{number}'"),
            Self::Mark(mark) => write!(f, "'{mark}'"),
        }
    }
}

fn fail(column: usize, message: impl Into<String>, remedy: &str) -> ExpressionError {
    ExpressionError { column, message: message.into(), remedy: remedy.to_owned() }
}

/// The tokens of a text, each with its column.
fn tokens(text: &str) -> Result<Vec<(usize, ExprToken)>, ExpressionError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let message = format!("longer than {EXPRESSION_BYTES_MAX} bytes");
        return Err(fail(1, message, "use fewer names"));
    }
    let chars: Vec<char> = text.chars().collect();
    let of_word = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let column = at + 1;
        if c.is_whitespace() {
            at += 1;
        } else if "(),".contains(c) {
            tokens.push((column, ExprToken::Mark(c)));
            at += 1;
        } else if of_word(c) {
            let word: String = chars[at..].iter().take_while(|c| of_word(**c)).collect();
            at += word.len();
            let token = match word.parse::<usize>() {
                Ok(number) => ExprToken::Number(number),
                Err(_) if c.is_ascii_alphabetic() || c == '_' => ExprToken::Name(word),
                Err(_) => {
                    let message = format!("'{word}' is neither a number nor a name");
                    return Err(fail(column, message, "begin names with a letter"));
                }
            };
            tokens.push((column, token));
        } else {
            let message = format!("unexpected character {c:?}");
            return Err(fail(column, message, "names consist of letters, digits, '-', '_', '.'"));
        }
    }
    Ok(tokens)
}

struct Parser {
    tokens: Vec<(usize, ExprToken)>,
    at: usize,
    end: usize,
    names: Vec<String>,
}

impl Parser {
    fn peek(&self) -> Option<&ExprToken> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn column(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(column, _)| *column)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(ExprToken::Name(name)) if name == word);
        self.at += usize::from(is);
        is
    }

    fn take_mark(&mut self, mark: char) -> bool {
        let is = self.peek() == Some(&ExprToken::Mark(mark));
        self.at += usize::from(is);
        is
    }

    fn expect_mark(&mut self, mark: char, remedy: &str) -> Result<(), ExpressionError> {
        if self.take_mark(mark) {
            return Ok(());
        }
        let found = self.peek().map_or("the end".to_owned(), ExprToken::to_string);
        Err(fail(self.column(), format!("'{mark}' is missing before {found}"), remedy))
    }

    /// A term, or several terms joined by the same operator.
    fn chain(&mut self, depth: usize) -> Result<ExprNode, ExpressionError> {
        if depth > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} nested parentheses");
            return Err(fail(self.column(), message, "simplify the expression"));
        }
        let mut places = vec![self.column()];
        let mut nodes = vec![self.term(depth)?];
        let mut joined_by = None;
        loop {
            let column = self.column();
            let word = if self.take_word("and") {
                "and"
            } else if self.take_word("or") {
                "or"
            } else {
                break;
            };
            if joined_by.is_some_and(|before| before != word) {
                let remedy = "add parentheses";
                return Err(fail(column, "'and' and 'or' are mixed", remedy));
            }
            joined_by = Some(word);
            places.push(self.column());
            nodes.push(self.term(depth)?);
        }
        let needed = if joined_by == Some("or") { 1 } else { nodes.len() };
        self.group(needed, nodes, &places)
    }

    /// A group of distinct UPSes; a single node is returned as it is.
    fn group(
        &self,
        needed: usize,
        mut nodes: Vec<ExprNode>,
        places: &[usize],
    ) -> Result<ExprNode, ExpressionError> {
        for (at, node) in nodes.iter().enumerate() {
            if let ExprNode::Ups(index) = node
                && nodes[..at].contains(node)
            {
                let message = format!("'{}' appears twice", self.names[*index]);
                return Err(fail(places[at], message, "name each UPS of a group once"));
            }
        }
        match nodes.len() {
            1 => Ok(nodes.remove(0)),
            _ => Ok(ExprNode::Group { needed, nodes }),
        }
    }

    fn term(&mut self, depth: usize) -> Result<ExprNode, ExpressionError> {
        let any = self.take_word("any");
        let column = self.column();
        match self.peek().cloned() {
            Some(ExprToken::Number(needed)) => {
                self.at += 1;
                self.counted(needed, column, depth)
            }
            _ if any => Err(fail(column, "a number is missing after 'any'", FORMS)),
            Some(ExprToken::Mark('(')) => {
                self.at += 1;
                let node = self.chain(depth + 1)?;
                self.expect_mark(')', "close the parenthesis")?;
                Ok(node)
            }
            Some(ExprToken::Name(name)) if !["and", "or", "of"].contains(&name.as_str()) => {
                self.at += 1;
                self.ups(name, column)
            }
            Some(token) => Err(fail(column, format!("a name is missing before {token}"), FORMS)),
            None => Err(fail(column, "a name is missing at the end", FORMS)),
        }
    }

    fn ups(&mut self, name: String, column: usize) -> Result<ExprNode, ExpressionError> {
        if let Some(index) = self.names.iter().position(|known| *known == name) {
            return Ok(ExprNode::Ups(index));
        }
        if self.names.len() == UPSES_MAX {
            let message = format!("more than {UPSES_MAX} UPSes");
            return Err(fail(column, message, "use fewer names"));
        }
        self.names.push(name);
        Ok(ExprNode::Ups(self.names.len() - 1))
    }

    /// Parses `of (a, b, c)` after a number.
    fn counted(
        &mut self,
        needed: usize,
        column: usize,
        depth: usize,
    ) -> Result<ExprNode, ExpressionError> {
        if !self.take_word("of") {
            return Err(fail(self.column(), format!("'of' is missing after {needed}"), FORMS));
        }
        self.expect_mark('(', "put the names in parentheses, separated by commas")?;
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        loop {
            places.push(self.column());
            nodes.push(self.chain(depth + 1)?);
            if !self.take_mark(',') {
                break;
            }
        }
        self.expect_mark(')', "separate the names by commas and close the parenthesis")?;
        if needed == 0 || needed > nodes.len() {
            let message = format!("{needed} of {} is impossible", nodes.len());
            return Err(fail(column, message, "require at least 1 and at most all of them"));
        }
        self.group(needed, nodes, &places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether the expression is satisfied by the UPSes whose bits are set.
    fn is_satisfied(expression: &Expression, bits: usize) -> bool {
        !expression.smallest(|index| bits & 1 << index == 0)
    }

    /// Checks all combinations against a predicate.
    fn check_table(text: &str, names: &str, truth: impl Fn(usize) -> bool) {
        let expression = Expression::parse(text).unwrap();
        assert_eq!(expression.names().join(" "), names, "{text}");
        for bits in 0..1 << expression.names().len() {
            assert_eq!(is_satisfied(&expression, bits), truth(bits), "{text}: {bits:b}");
        }
        assert_eq!(Expression::parse(&expression.to_string()).as_ref(), Ok(&expression), "{text}");
    }

    #[test]
    fn truth_tables() {
        check_table("rack-a", "rack-a", |bits| bits == 1);
        check_table("rack-a and rack-b", "rack-a rack-b", |bits| bits == 3);
        check_table("rack-a or rack-b", "rack-a rack-b", |bits| bits != 0);
        check_table("any 1 of (rack-a, rack-b)", "rack-a rack-b", |bits| bits != 0);
        check_table("2 of (a, b, c)", "a b c", |bits| bits.count_ones() >= 2);
        check_table("3 of (a, b, c)", "a b c", |bits| bits == 7);
        check_table("1 of (a)", "a", |bits| bits == 1);
        check_table("(a and b) or (a and c)", "a b c", |bits| [3, 5, 7].contains(&bits));
        check_table("2 of (a, b or c, d and e)", "a b c d e", |bits| {
            let parts = [bits & 1 != 0, bits & 6 != 0, bits & 24 == 24];
            parts.iter().filter(|part| **part).count() >= 2
        });
        check_table("a and b and (c or d)", "a b c d", |bits| bits & 3 == 3 && bits & 12 != 0);
    }

    #[test]
    fn reports_syntax_errors_with_their_column() {
        for (text, column, word) in [
            ("", 1, "missing at the end"),
            ("a and", 6, "missing at the end"),
            ("a b", 3, "unexpected"),
            ("and a", 1, "before 'and'"),
            ("a and b or c", 9, "mixed"),
            ("a or a", 6, "twice"),
            ("2 of (a, b, a)", 13, "twice"),
            ("3 of (a, b)", 1, "3 of 2"),
            ("0 of (a, b)", 1, "0 of 2"),
            ("2 (a, b)", 3, "'of'"),
            ("2 of a, b", 6, "'('"),
            ("2 of (a b)", 9, "')'"),
            ("2 of (a, b", 11, "')'"),
            ("(a", 3, "')'"),
            ("any (a, b)", 5, "number"),
            ("ä and a", 1, "unexpected"),
            ("a and é", 7, "unexpected"),
            ("2a", 1, "neither"),
            ("((((((((((a))))))))))", 10, "parentheses"),
            ("99999999999999999999999 of (a)", 1, "neither"),
        ] {
            let error = Expression::parse(text).unwrap_err();
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("s{n}")).collect();
        assert!(Expression::parse(&many.join(" and ")).is_err());
        assert!(Expression::parse(&"x".repeat(1025)).is_err());
    }

    proptest! {
        #[test]
        fn displayed_expression_parses_to_the_same(
            text in "(a|b|c|d| and | or |2 of |1 of |\\(|\\)|,|any | ){0,12}"
        ) {
            match Expression::parse(&text) {
                Ok(expression) => {
                    let shown = expression.to_string();
                    prop_assert_eq!(Expression::parse(&shown), Ok(expression));
                }
                Err(error) => prop_assert!(error.column <= text.chars().count() + 1),
            }
        }

        #[test]
        fn one_more_ups_never_hurts(bits in 0usize..32, more in 0usize..5) {
            for text in ["2 of (a, b or c, d and e)", "a and b and c and d and e"] {
                let expression = Expression::parse(text).unwrap();
                let with_more = is_satisfied(&expression, bits | 1 << more);
                prop_assert!(!is_satisfied(&expression, bits) || with_more);
            }
        }
    }
}
