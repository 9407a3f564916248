/* Writes to a protected collection; prints what the driver says. Every driver's script does the same. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>

static mongoc_collection_t *users;

static void fail(const char *what, const bson_error_t *error) {
    fprintf(stderr, "%s: %s\n", what, error->message);
    exit(1);
}

static bson_t *user(int id, const char *email) {
    return BCON_NEW("_id", BCON_INT32(id), "email", BCON_UTF8(email));
}

static bson_t *set(const char *email) {
    return BCON_NEW("$set", "{", "email", BCON_UTF8(email), "}");
}

static void insert(int id, const char *email) {
    bson_error_t error;
    if (!mongoc_collection_insert_one(users, user(id, email), NULL, NULL, &error)) {
        fail("insert", &error);
    }
}

static void refused(bool done, const bson_error_t *error) {
    if (done) {
        puts("not refused");
    } else {
        printf("refused %u %s\n", error->code, strstr(error->message, "email_1 dup key") ? "True" : "False");
    }
}

static int number(const bson_t *reply, const char *name) {
    bson_iter_t at;
    return bson_iter_init_find(&at, reply, name) ? bson_iter_int32(&at) : -1;
}

int main(int count, char **arguments) {
    bson_error_t error;
    bson_t reply;
    mongoc_init();
    mongoc_client_t *client = mongoc_client_new(arguments[1]);
    if (count != 3 || !client) {
        return 1;
    }
    users = mongoc_client_get_collection(client, arguments[2], "users");
    bson_t *third = BCON_NEW("_id", BCON_INT32(3));

    insert(1, "a@x");
    refused(mongoc_collection_insert_one(users, user(2, "a@x"), NULL, NULL, &error), &error);

    const bson_t *many[] = {user(3, "b@x"), user(4, "a@x"), user(5, "c@x")};
    bson_t *unordered = BCON_NEW("ordered", BCON_BOOL(false));
    if (mongoc_collection_insert_many(users, many, 3, unordered, &reply, &error)) {
        puts("not refused");
    } else {
        bson_iter_t at, errors, first;
        printf("refused %u at ", error.code);
        bson_iter_init_find(&at, &reply, "writeErrors");
        bson_iter_recurse(&at, &errors);
        for (const char *comma = ""; bson_iter_next(&errors); comma = ",") {
            bson_iter_recurse(&errors, &first);
            bson_iter_find(&first, "index");
            printf("%s%d", comma, bson_iter_int32(&first));
        }
        printf(" inserted %d\n", number(&reply, "insertedCount"));
    }

    refused(mongoc_collection_update_one(users, third, set("c@x"), NULL, NULL, &error), &error);
    if (!mongoc_collection_update_one(users, third, set("d@x"), NULL, &reply, &error)) {
        fail("update", &error);
    }
    printf("updated %d\n", number(&reply, "modifiedCount"));

    if (!mongoc_collection_find_and_modify(users, third, NULL, set("e@x"), NULL, false, false, false, &reply, &error)) {
        fail("find_and_modify", &error);
    }
    bson_iter_t at, email;
    bson_iter_init(&at, &reply);
    bson_iter_find_descendant(&at, "value.email", &email);
    printf("before %s\n", bson_iter_utf8(&email, NULL));

    bson_t *upsert = BCON_NEW("upsert", BCON_BOOL(true));
    bson_t *sixth = BCON_NEW("_id", BCON_INT32(6));
    if (!mongoc_collection_replace_one(users, sixth, BCON_NEW("email", "f@x"), upsert, NULL, &error)) {
        fail("replace", &error);
    }
    if (!mongoc_collection_delete_one(users, BCON_NEW("email", "a@x"), NULL, &reply, &error)) {
        fail("delete", &error);
    }
    printf("deleted %d\n", number(&reply, "deletedCount"));
    insert(7, "a@x");

    const bson_t *found;
    bson_t *sorted = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}");
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(users, bson_new(), sorted, NULL);
    for (const char *space = ""; mongoc_cursor_next(cursor, &found); space = " ") {
        bson_iter_init_find(&at, found, "email");
        printf("%s%s", space, bson_iter_utf8(&at, NULL));
    }
    puts("");
    if (mongoc_cursor_error(cursor, &error)) {
        fail("find", &error);
    }
    return 0;
}
