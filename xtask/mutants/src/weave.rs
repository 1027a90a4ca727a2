//! How do many changes become one program?
//!
//! Every change is written into the text beside what it replaces, and a variable says which one counts. Operands are never
//! written twice, so that changes may lie inside of each other.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A change, as `cargo mutants --list --json` tells it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) genre: String,
    pub(crate) replacement: String,
    /// Where it begins: the line from 1, the column from 0.
    pub(crate) at: (usize, usize),
}

/// A text with all its changes in it.
pub(crate) struct Woven {
    pub(crate) text: String,
    /// Which bytes of it belong to which change.
    pub(crate) pieces: Vec<(std::ops::Range<usize>, usize)>,
}

pub(crate) fn weave(text: &str, changes: &[Change]) -> Result<Woven> {
    let file = syn::parse_file(text).context("not Rust")?;
    let mut at = BTreeMap::<_, Vec<Change>>::new();
    for change in changes {
        at.entry(change.at).or_default().push(change.clone());
    }
    let mut weaver = Weaver { at, lines: lines(text), edits: Vec::new() };
    weaver.visit_file(&file);
    Ok(weaver.apply(text))
}

/// What is put in the place of some bytes; `None` for what belongs to no single change.
struct Edit {
    start: usize,
    end: usize,
    parts: Vec<(String, Option<usize>)>,
}

struct Weaver {
    at: BTreeMap<(usize, usize), Vec<Change>>,
    lines: Vec<Vec<usize>>,
    edits: Vec<Edit>,
}

/// For every line the byte at which each of its characters begins, and its end.
fn lines(text: &str) -> Vec<Vec<usize>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for line in text.split_inclusive('\n') {
        let mut bytes: Vec<usize> = line.char_indices().map(|(at, _)| start + at).collect();
        start += line.len();
        bytes.push(start);
        lines.push(bytes);
    }
    lines
}

fn chosen(change: &Change) -> String {
    format!("crate::is_mutant({})", change.number)
}

impl Weaver {
    fn byte(&self, place: LineColumn) -> usize {
        self.lines[place.line - 1][place.column]
    }

    /// The changes of this kind that begin here.
    fn take(&self, span: Span, genre: &str) -> Vec<Change> {
        let start = span.start();
        let here = self.at.get(&(start.line, start.column)).into_iter().flatten();
        here.filter(|change| change.genre == genre).cloned().collect()
    }

    fn insert(&mut self, at: usize, parts: Vec<(String, Option<usize>)>) {
        self.edits.push(Edit { start: at, end: at, parts });
    }

    fn plain(&mut self, at: usize, text: &str) {
        self.insert(at, vec![(text.to_owned(), None)]);
    }

    fn apply(mut self, text: &str) -> Woven {
        // Stable: of two at one place the outer one opens first and closes last, because that is the order of the visit.
        self.edits.sort_by_key(|edit| edit.start);
        let (mut woven, mut pieces, mut done) = (String::new(), Vec::new(), 0);
        for edit in self.edits {
            woven.push_str(&text[done..edit.start]);
            for (part, number) in edit.parts {
                let start = woven.len();
                woven.push_str(&part);
                pieces.extend(number.map(|number| (start..woven.len(), number)));
            }
            done = edit.end;
        }
        woven.push_str(&text[done..]);
        Woven { text: woven, pieces }
    }

    fn body(&mut self, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let at = self.byte(first.span().start());
        for change in self.take(first.span(), "FnValue") {
            let value = &change.replacement;
            let text = format!("if {} {{ return {value}; }} ", chosen(&change));
            self.insert(at, vec![(text, Some(change.number))]);
        }
    }

    /// Comparisons and arithmetic: both operands are worked out once, then one of the operators is applied.
    fn operator(&mut self, node: &syn::ExprBinary, changes: &[Change]) {
        use syn::BinOp::{Eq, Ge, Gt, Le, Lt, Ne};
        let compares = matches!(node.op, Lt(_) | Le(_) | Gt(_) | Ge(_) | Eq(_) | Ne(_));
        let by = if compares { "&" } else { "" };
        let span = node.op.span();
        let (start, end) = (self.byte(span.start()), self.byte(span.end()));
        let left = self.byte(node.left.span().start());
        self.plain(left, &format!("(match ({by}("));
        visit::visit_expr(self, &node.left);
        self.edits.push(Edit { start, end, parts: vec![(format!("), {by}("), None)] });
        visit::visit_expr(self, &node.right);
        let mut parts = vec![(")) { (l, r) => ".to_owned(), None)];
        for change in changes {
            let text = format!("if {} {{ l {} r }} else ", chosen(change), change.replacement);
            parts.push((text, Some(change.number)));
        }
        let operator = source(&node.op);
        parts.push((format!("{{ l {operator} r }} }})"), None));
        let right = self.byte(node.right.span().end());
        self.insert(right, parts);
    }

    /// `&&` and `||`: the second operand is worked out only where it counts.
    fn logic(&mut self, node: &syn::ExprBinary, change: &Change) {
        let is_and = matches!(node.op, syn::BinOp::And(_));
        let span = node.op.span();
        let (start, end) = (self.byte(span.start()), self.byte(span.end()));
        let left = self.byte(node.left.span().start());
        self.plain(left, "(match (");
        visit::visit_expr(self, &node.left);
        let stays = if is_and { "==" } else { "!=" };
        let middle = format!(") {{ l => if l {stays} {} {{ l }} else {{ ", chosen(change));
        self.edits.push(Edit { start, end, parts: vec![(middle, Some(change.number))] });
        visit::visit_expr(self, &node.right);
        let right = self.byte(node.right.span().end());
        self.plain(right, " } })");
    }
}

fn source(operator: &syn::BinOp) -> String {
    operator.span().source_text().unwrap_or_default()
}

fn has_let(expression: &syn::Expr) -> bool {
    struct Search(bool);
    impl Visit<'_> for Search {
        fn visit_expr_let(&mut self, _: &syn::ExprLet) {
            self.0 = true;
        }
    }
    let mut search = Search(false);
    search.visit_expr(expression);
    search.0
}

impl<'ast> Visit<'ast> for Weaver {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if node.sig.constness.is_none() {
            self.body(&node.block);
            visit::visit_item_fn(self, node);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if node.sig.constness.is_none() {
            self.body(&node.block);
            visit::visit_impl_item_fn(self, node);
        }
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        // Tests are not changed.
        if node.ident != "tests" {
            visit::visit_item_mod(self, node);
        }
    }

    // No code runs in them that could ask which change counts.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let changes = self.take(node.op.span(), "BinaryOperator");
        let is_logic = matches!(node.op, syn::BinOp::And(_) | syn::BinOp::Or(_));
        match changes.as_slice() {
            [change] if is_logic && !has_let(&node.left) && !has_let(&node.right) => self.logic(node, change),
            [_, ..] if !is_logic && !source(&node.op).ends_with("+=") && !is_assignment(node.op) => {
                self.operator(node, &changes);
            }
            _ => visit::visit_expr_binary(self, node),
        }
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let changes = self.take(node.op.span(), "UnaryOperator");
        let ([change], syn::UnOp::Not(_)) = (changes.as_slice(), node.op) else {
            return visit::visit_expr_unary(self, node);
        };
        let start = self.byte(node.span().start());
        self.insert(start, vec![(format!("({} != (", chosen(change)), Some(change.number))]);
        visit::visit_expr_unary(self, node);
        let end = self.byte(node.expr.span().end());
        self.plain(end, "))");
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let deleted = self.take(node.span(), "MatchArm");
        match &node.guard {
            Some((_, guard)) if !has_let(guard) => {
                let (start, end) = (self.byte(guard.span().start()), self.byte(guard.span().end()));
                let mut opening = Vec::new();
                for change in &deleted {
                    opening.push((format!("!{} && ", chosen(change)), Some(change.number)));
                }
                opening.push(("(".to_owned(), None));
                for change in self.take(guard.span(), "MatchArmGuard") {
                    let word = if change.replacement == "true" { "" } else { "!" };
                    let joined = if change.replacement == "true" { "||" } else { "&&" };
                    opening.push((format!("{word}{} {joined} ", chosen(&change)), Some(change.number)));
                }
                opening.push(("(".to_owned(), None));
                self.insert(start, opening);
                visit::visit_expr(self, guard);
                self.plain(end, "))");
            }
            Some(_) => {}
            None => {
                let end = self.byte(node.pat.span().end());
                for change in &deleted {
                    self.insert(end, vec![(format!(" if !{}", chosen(change)), Some(change.number))]);
                }
            }
        }
        visit::visit_expr(self, &node.body);
    }
}

fn is_assignment(operator: syn::BinOp) -> bool {
    let text = source(&operator);
    text.len() > 1 && text.ends_with('=') && !matches!(text.as_str(), "==" | "!=" | "<=" | ">=")
}
