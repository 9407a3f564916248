//! The tables of `docs/performance.md`, read back: the pictures are drawn from the figures on the page.

/// A table: its head, and its rows.
pub struct Table {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// The tables in `text`, in their order.
    pub fn all_in(text: &str) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        let mut is_within = false;
        for line in text.lines() {
            let Some(line) = line.strip_prefix('|') else {
                is_within = false;
                continue;
            };
            let cells = line.trim_end().trim_end_matches('|').split('|');
            let cells: Vec<String> = cells.map(|cell| cell.trim().to_owned()).collect();
            match tables.last_mut().filter(|_| is_within) {
                None => tables.push(Table {
                    head: cells,
                    rows: Vec::new(),
                }),
                Some(_) if cells[0].starts_with("---") => {}
                Some(table) => table.rows.push(cells),
            }
            is_within = true;
        }
        tables
    }

    /// The number of the column with this head.
    pub fn column(&self, head: &str) -> usize {
        let columns = self.columns(head);
        assert_eq!(columns.len(), 1, "{head} in {:?}", self.head);
        columns[0]
    }

    /// The numbers of all columns with this head.
    pub fn columns(&self, head: &str) -> Vec<usize> {
        let heads = self.head.iter().enumerate();
        heads
            .filter(|(_, other)| *other == head)
            .map(|(column, _)| column)
            .collect()
    }
}
