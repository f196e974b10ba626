//! Values with numbers; the number of a removed value is reused.

/// Values that keep their number until they are removed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(value);
                at
            }
            None => {
                self.entries.push(Some(value));
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// Removes a value; `None` if there is none with this number.
    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        self.entries[at as usize].as_mut().expect("the number is in use")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        std::mem::take(&mut self.entries).into_iter().flatten()
    }
}
