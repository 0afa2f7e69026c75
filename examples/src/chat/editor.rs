//! The input line of the user.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::line::{Line, Style};

/// How many lines the history has.
const HISTORY: usize = 200;

/// A line editor with a history. A pasted line break stays in the text and is shown as a symbol.
#[derive(Debug, Default)]
pub(super) struct Editor {
    text: Vec<char>,
    /// The index of the character after the cursor.
    cursor: usize,
    history: Vec<String>,
    /// The index of the shown history line, and the text that was being edited before.
    recalled: Option<(usize, Vec<char>)>,
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Edited {
    /// The line is still being edited.
    Here,
    /// The line is finished.
    Line(String),
    /// The user ended the input with Ctrl-D on an empty line.
    End,
}

impl Editor {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.cursor = 0;
        self.recalled = None;
    }

    pub(super) fn insert(&mut self, text: &str) {
        let text: Vec<char> = super::plain::Plain::of(text).chars().collect();
        let count = text.len();
        self.text.splice(self.cursor..self.cursor, text);
        self.cursor += count;
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Edited {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Enter if alt => self.insert("\n"),
            KeyCode::Enter => return self.finish(),
            KeyCode::Char('d') if control && self.text.is_empty() => return Edited::End,
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.text.len(),
            KeyCode::Char('u') if control => drop(self.text.drain(..std::mem::take(&mut self.cursor))),
            KeyCode::Char('k') if control => self.text.truncate(self.cursor),
            KeyCode::Char('w') if control => self.erase_word(),
            KeyCode::Char('d') if control => self.erase_after(),
            KeyCode::Char(character) if !control && !alt => self.insert(character.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace if alt => self.erase_word(),
            KeyCode::Backspace => self.erase_before(),
            KeyCode::Delete => self.erase_after(),
            KeyCode::Left => self.cursor = self.cluster_before(),
            KeyCode::Right => self.cursor = self.cluster_after(),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            KeyCode::Up => self.recall_older(),
            KeyCode::Down => self.recall_newer(),
            _ => {}
        }
        Edited::Here
    }

    fn finish(&mut self) -> Edited {
        let text: String = self.text.iter().collect();
        self.clear();
        if !text.trim().is_empty() && self.history.last() != Some(&text) {
            self.history.push(text.clone());
            if self.history.len() > HISTORY {
                self.history.remove(0);
            }
        }
        Edited::Line(text)
    }

    /// Returns where the character before the cursor starts, including its combining marks.
    fn cluster_before(&self) -> usize {
        let mut at = self.cursor;
        while at > 0 {
            at -= 1;
            if self.text[at].width().unwrap_or(0) > 0 {
                break;
            }
        }
        at
    }

    fn cluster_after(&self) -> usize {
        let mut at = (self.cursor + 1).min(self.text.len());
        while at < self.text.len() && self.text[at].width() == Some(0) {
            at += 1;
        }
        at
    }

    fn erase_before(&mut self) {
        let start = self.cluster_before();
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }

    fn erase_after(&mut self) {
        let end = self.cluster_after();
        self.text.drain(self.cursor..end);
    }

    fn erase_word(&mut self) {
        let mut start = self.cursor;
        while start > 0 && self.text[start - 1].is_whitespace() {
            start -= 1;
        }
        while start > 0 && !self.text[start - 1].is_whitespace() {
            start -= 1;
        }
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }

    fn recall_older(&mut self) {
        let shown = self.recalled.as_ref().map_or(self.history.len(), |(shown, _)| *shown);
        if shown > 0 {
            let (_, draft) = self.recalled.take().unwrap_or_else(|| (shown, self.text.clone()));
            self.show(self.history[shown - 1].chars().collect());
            self.recalled = Some((shown - 1, draft));
        }
    }

    fn recall_newer(&mut self) {
        let Some((shown, draft)) = self.recalled.take() else { return };
        match self.history.get(shown + 1) {
            Some(line) => {
                self.show(line.chars().collect());
                self.recalled = Some((shown + 1, draft));
            }
            None => self.show(draft),
        }
    }

    fn show(&mut self, text: Vec<char>) {
        self.cursor = text.len();
        self.text = text;
    }

    /// Returns the part of the line around the cursor that fits, and the column of the cursor.
    pub(super) fn view(&self, prompt: &str, width: usize) -> (Line, usize) {
        let room = width.saturating_sub(prompt.width() + 1).max(1);
        let shown: Vec<char> = self.text.iter().map(|c| if *c == '\n' { '⏎' } else { *c }).collect();
        let width_of = |part: &[char]| part.iter().collect::<String>().width();
        let mut start = 0;
        while start < self.cursor && width_of(&shown[start..self.cursor]) > room {
            start += 1;
        }
        let mut end = self.cursor;
        while end < shown.len() && width_of(&shown[start..=end]) <= room {
            end += 1;
        }
        let text: String = shown[start..end].iter().collect();
        let column = prompt.width() + width_of(&shown[start..self.cursor]);
        (Line::new(Style::User, prompt).with(Style::Normal, &text), column)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::{Edited, Editor};

    fn press(editor: &mut Editor, code: KeyCode) -> Edited {
        editor.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn control(editor: &mut Editor, key: char) -> Edited {
        editor.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL))
    }

    fn text(editor: &Editor) -> String {
        editor.text.iter().collect()
    }

    #[test]
    fn the_cursor_moves_and_edits_happen_where_it_stands() {
        let mut editor = Editor::default();
        editor.insert("hello wörld");
        press(&mut editor, KeyCode::Home);
        editor.insert("oh ");
        press(&mut editor, KeyCode::Right);
        press(&mut editor, KeyCode::Delete);
        press(&mut editor, KeyCode::End);
        press(&mut editor, KeyCode::Left);
        press(&mut editor, KeyCode::Backspace);
        assert_eq!(text(&editor), "oh hllo wörd");
        control(&mut editor, 'w');
        assert_eq!(text(&editor), "oh hllo d");
        control(&mut editor, 'k');
        assert_eq!(text(&editor), "oh hllo ");
        control(&mut editor, 'u');
        assert!(editor.is_empty());
        assert_eq!(control(&mut editor, 'd'), Edited::End);
    }

    #[test]
    fn marks_go_with_the_letter_they_stand_on() {
        let mut editor = Editor::default();
        editor.insert("ae\u{301}");
        press(&mut editor, KeyCode::Backspace);
        assert_eq!(text(&editor), "a");
    }

    #[test]
    fn the_history_comes_back_and_the_draft_is_kept() {
        let mut editor = Editor::default();
        for line in ["one", "two", "two"] {
            editor.insert(line);
            assert_eq!(press(&mut editor, KeyCode::Enter), Edited::Line(line.to_owned()));
        }
        editor.insert("draft");
        press(&mut editor, KeyCode::Up);
        assert_eq!(text(&editor), "two");
        press(&mut editor, KeyCode::Up);
        press(&mut editor, KeyCode::Up);
        assert_eq!(text(&editor), "one");
        press(&mut editor, KeyCode::Down);
        press(&mut editor, KeyCode::Down);
        assert_eq!(text(&editor), "draft");
    }

    #[test]
    fn what_is_shown_always_fits_and_has_the_cursor_in_it() {
        let mut editor = Editor::default();
        editor.insert("a long line with 日本語 in it,\nand a pasted line end");
        for _ in 0..60 {
            for width in 1..40 {
                let (line, column) = editor.view("› ", width);
                assert!(line.width() <= width.max(4) && column < width.max(5), "{width}: {}", line.text());
            }
            press(&mut editor, KeyCode::Left);
        }
        assert_eq!(editor.view("› ", 80).0.text(), "› a long line with 日本語 in it,⏎and a pasted line end");
    }

    #[test]
    fn pasted_escapes_are_text_like_any_other() {
        let mut editor = Editor::default();
        editor.insert("a\u{1b}[2Jb");
        assert_eq!(text(&editor), "ab");
    }
}
