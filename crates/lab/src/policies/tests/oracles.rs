//! The definitions in their plainest form: vectors of line numbers, youngest first, searched
//! linearly.

/// A whole cache by its definition.
pub trait Oracle {
    /// Reads or writes one line.
    fn access(&mut self, line: u64);
    /// The lines in the cache.
    fn residents(&self) -> Vec<u64>;
}

fn take(from: &mut Vec<u64>, line: u64) -> bool {
    let at = from.iter().position(|&other| other == line);
    at.map(|at| from.remove(at)).is_some()
}

pub struct NaiveLru {
    capacity: usize,
    lines: Vec<u64>,
}

impl NaiveLru {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, lines: Vec::new() }
    }
}

impl Oracle for NaiveLru {
    fn access(&mut self, line: u64) {
        take(&mut self.lines, line);
        self.lines.insert(0, line);
        self.lines.truncate(self.capacity);
    }

    fn residents(&self) -> Vec<u64> {
        self.lines.clone()
    }
}

pub struct NaiveSieve {
    capacity: usize,
    /// Each line with its visited bit.
    lines: Vec<(u64, bool)>,
    /// The line that the hand points to.
    hand: Option<u64>,
}

impl NaiveSieve {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, lines: Vec::new(), hand: None }
    }

    fn evict(&mut self) {
        let hand = self.hand.and_then(|hand| self.lines.iter().position(|&(line, _)| line == hand));
        let mut at = hand.unwrap_or(self.lines.len() - 1);
        while self.lines[at].1 {
            self.lines[at].1 = false;
            at = at.checked_sub(1).unwrap_or(self.lines.len() - 1);
        }
        self.hand = at.checked_sub(1).map(|next| self.lines[next].0);
        self.lines.remove(at);
    }
}

impl Oracle for NaiveSieve {
    fn access(&mut self, line: u64) {
        if let Some(found) = self.lines.iter_mut().find(|found| found.0 == line) {
            found.1 = true;
            return;
        }
        if self.lines.len() == self.capacity {
            self.evict();
        }
        self.lines.insert(0, (line, false));
    }

    fn residents(&self) -> Vec<u64> {
        self.lines.iter().map(|&(line, _)| line).collect()
    }
}

pub struct NaiveTwoQ {
    capacity: usize,
    a1in: Vec<u64>,
    a1out: Vec<u64>,
    am: Vec<u64>,
}

impl NaiveTwoQ {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, a1in: Vec::new(), a1out: Vec::new(), am: Vec::new() }
    }

    fn reclaim(&mut self) {
        if self.a1in.len() + self.am.len() < self.capacity {
            return;
        }
        if self.a1in.len() > self.capacity / 4 || self.am.is_empty() {
            let line = self.a1in.pop().unwrap();
            self.a1out.insert(0, line);
            self.a1out.truncate(self.capacity / 2);
        } else {
            self.am.pop();
        }
    }
}

impl Oracle for NaiveTwoQ {
    fn access(&mut self, line: u64) {
        if take(&mut self.am, line) {
            self.am.insert(0, line);
        } else if self.a1in.contains(&line) {
            // Nothing.
        } else if take(&mut self.a1out, line) {
            self.reclaim();
            self.am.insert(0, line);
        } else {
            self.reclaim();
            self.a1in.insert(0, line);
        }
    }

    fn residents(&self) -> Vec<u64> {
        [self.a1in.clone(), self.am.clone()].concat()
    }
}

pub struct NaiveArc {
    c: usize,
    p: usize,
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
}

impl NaiveArc {
    pub fn new(capacity: usize) -> Self {
        let (t1, t2, b1, b2) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { c: capacity, p: 0, t1, t2, b1, b2 }
    }

    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len();
        if t1 > 0 && (t1 > self.p || (in_b2 && t1 == self.p)) {
            self.b1.insert(0, self.t1.pop().unwrap());
        } else {
            self.b2.insert(0, self.t2.pop().unwrap());
        }
    }
}

impl Oracle for NaiveArc {
    /// The four cases of the paper's figure 4.
    fn access(&mut self, line: u64) {
        let (b1, b2) = (self.b1.len(), self.b2.len());
        if take(&mut self.t1, line) || take(&mut self.t2, line) {
            self.t2.insert(0, line);
        } else if self.b1.contains(&line) {
            self.p = (self.p + (b2 / b1).max(1)).min(self.c);
            self.replace(false);
            take(&mut self.b1, line);
            self.t2.insert(0, line);
        } else if self.b2.contains(&line) {
            self.p = self.p.saturating_sub((b1 / b2).max(1));
            self.replace(true);
            take(&mut self.b2, line);
            self.t2.insert(0, line);
        } else {
            let l1 = self.t1.len() + b1;
            if l1 == self.c {
                if self.t1.len() < self.c {
                    self.b1.pop();
                    self.replace(false);
                } else {
                    self.t1.pop();
                }
            } else if l1 + self.t2.len() + b2 >= self.c {
                if l1 + self.t2.len() + b2 == 2 * self.c {
                    self.b2.pop();
                }
                self.replace(false);
            }
            self.t1.insert(0, line);
        }
    }

    fn residents(&self) -> Vec<u64> {
        [self.t1.clone(), self.t2.clone()].concat()
    }
}
