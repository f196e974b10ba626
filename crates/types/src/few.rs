//! A list that is usually of one.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list that needs no memory of its own while it has at most one element.
///
/// An I/O usually has one line, one segment, one buffer: a vector for each of them would be an
/// allocation, which costs more than what is done with the element.
#[derive(Clone)]
pub struct Few<T>(Kind<T>);

#[derive(Clone)]
enum Kind<T> {
    One(T),
    Others(Vec<T>),
}

impl<T> Few<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self(Kind::Others(Vec::new()))
    }

    /// A list of one element.
    pub const fn one(element: T) -> Self {
        Self(Kind::One(element))
    }

    /// An empty list with room for so many elements.
    pub fn with_capacity(elements: usize) -> Self {
        Self(Kind::Others(if elements > 1 { Vec::with_capacity(elements) } else { Vec::new() }))
    }

    /// Appends an element. Allocates from the second on.
    pub fn push(&mut self, element: T) {
        match &mut self.0 {
            Kind::Others(others) if others.capacity() == 0 => self.0 = Kind::One(element),
            Kind::Others(others) => others.push(element),
            Kind::One(_) => {
                let one = std::mem::take(self);
                *self = Self(Kind::Others(one.into_iter().chain([element]).collect()));
            }
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Kind::One(element) => std::slice::from_ref(element),
            Kind::Others(others) => others,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Kind::One(element) => std::slice::from_mut(element),
            Kind::Others(others) => others,
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(Kind::Others(elements))
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let elements = elements.into_iter();
        let mut few = Self::with_capacity(elements.size_hint().0);
        few.extend(elements);
        few
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| self.push(element));
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, others) = match self.0 {
            Kind::One(element) => (Some(element), Vec::new()),
            Kind::Others(others) => (None, others),
        };
        one.into_iter().chain(others)
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_list().entries(self).finish()
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_list_of_what_was_pushed() {
        let mut few = Few::new();
        let mut list = Vec::new();
        for element in 0..5 {
            assert_eq!((&*few, few.len()), (&*list, list.len()));
            assert_eq!(few, list.iter().copied().collect());
            assert_eq!(few, Few::from(list.clone()));
            assert_eq!(few.clone().into_iter().collect::<Vec<_>>(), list);
            few.push(element);
            list.push(element);
        }
        assert_eq!(*Few::from_iter(0..5), list);
        few[0] = 7;
        assert_eq!(format!("{few:?}"), "[7, 1, 2, 3, 4]");
        let mut one = Few::one(3);
        one[0] += 1;
        assert_eq!(*one, [4]);
    }
}
