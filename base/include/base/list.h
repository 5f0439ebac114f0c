/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Intrusive doubly linked ring. A head and a link are the same struct; an unlinked link points to
 * itself, so kvb_list_remove() may be called on it again. Not thread safe.
 */
struct kvb_list {
    struct kvb_list *prev;
    struct kvb_list *next;
};

#define kvb_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void kvb_list_init(struct kvb_list *list)
{
    list->prev = list;
    list->next = list;
}

static inline bool kvb_list_empty(const struct kvb_list *list)
{
    return list->next == list;
}

static inline void kvb_list_push_back(struct kvb_list *head, struct kvb_list *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

static inline void kvb_list_push_front(struct kvb_list *head, struct kvb_list *link)
{
    kvb_list_push_back(head->next, link);
}

static inline void kvb_list_remove(struct kvb_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    kvb_list_init(link);
}

/* First link, or NULL. The link stays in the list. */
static inline struct kvb_list *kvb_list_first(const struct kvb_list *head)
{
    return kvb_list_empty(head) ? NULL : head->next;
}

/* Removes and returns the first link, or NULL. */
static inline struct kvb_list *kvb_list_pop(struct kvb_list *head)
{
    struct kvb_list *link = kvb_list_first(head);
    if (link != NULL) {
        kvb_list_remove(link);
    }
    return link;
}

/* Walks the list; the current link may be removed inside, others may not. */
#define kvb_list_each(head, link)                                                                  \
    for (struct kvb_list *link = (head)->next, *link##_next = link->next; link != (head);          \
         link = link##_next, link##_next = link->next)

#endif
